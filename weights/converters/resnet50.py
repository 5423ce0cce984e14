"""ResNet-50: a Keras model in TensorFlow.js layers format becomes ONNX.

`input` [N,3,H,W] uint8, RGB → `output` [N,classes] float32 logits; the softmax at the end is
left out. H, W and the number of classes are the stored model's own (224, 224, 1000).

Batch normalisation is folded into the convolution before it: with f = γ / √(σ² + ε), the kernel
becomes k·f and the bias (b − μ)·f + β (Ioffe and Szegedy 2015, algorithm 1, inference).

The package is pinned by its checksum, so that its layers are known: what is in no other ResNet-50
of Keras is not mapped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from weights.converters import tfjs
from weights.converters.graph import GraphBuilder
from weights.converters.pixels import take_bytes
from weights.errors import WeightsError

# Keras' "caffe" preprocessing, which ResNet50 was trained with: 0-255, BGR, this mean taken off
# (keras-applications, imagenet_utils.py). Given here in RGB order.
MEAN = np.array([123.68, 116.779, 103.939])
SCALE = 255.0


def convert(folder: Path) -> onnx.ModelProto:
    """Convert the TensorFlow.js layers model in `folder` to ONNX.

    Raises WeightsError for a layer of a kind that a ResNet-50 has not.
    """
    stored, weights = tfjs.read(folder)
    layers = stored["modelTopology"]["model_config"]["config"]["layers"]
    return take_bytes(_ResNetConverter(layers, weights).run())


class _ResNetConverter:
    def __init__(self, layers: list[dict[str, Any]], weights: dict[str, NDArray[Any]]) -> None:
        self._layers, self._weights = layers, weights
        self._graph = GraphBuilder()
        self._tensors: dict[str, str] = {}
        """What each layer makes."""
        self._pads = {
            layer["name"]: [side[end] for end in (0, 1) for side in layer["config"]["padding"]]
            for layer in layers
            if layer["class_name"] == "ZeroPadding2D"
        }
        """Zeros still to be put around it: top, left, bottom, right."""

    def run(self) -> onnx.ModelProto:
        sides, classes = [], 0
        for layer in self._layers:
            name, config = layer["name"], layer["config"]
            sources = [entry[0] for call in layer["inbound_nodes"] for entry in call]
            tensors = [self._tensors[source] for source in sources]
            match layer["class_name"]:
                case "InputLayer":
                    _, *sides, _ = config["batch_input_shape"]
                    made = self._take_mean_off(name)
                case "Conv2D":
                    made = self._convolve(name, config, sources[0])
                # Applied and folded by the layer behind and the one before.
                case "ZeroPadding2D" | "BatchNormalization":
                    (made,) = tensors
                case "Activation" | "Add" as kind:
                    made = self._graph.node("Add" if kind == "Add" else "Relu", tensors, name)
                case "MaxPooling2D":
                    # ONNX pads a maximum with minus infinity; behind a ReLU zeros are the same.
                    made = self._graph.node(
                        "MaxPool",
                        tensors,
                        name,
                        kernel_shape=config["pool_size"],
                        strides=config["strides"],
                        pads=self._pads.get(sources[0], [0] * 4),
                    )
                case "GlobalAveragePooling2D":
                    pooled = self._graph.node("GlobalAveragePool", tensors, f"{name}.mean")
                    made = self._graph.node("Flatten", [pooled], name, axis=1)
                case "Dense":
                    made, classes = self._classify(name, tensors[0])
                case kind:
                    raise WeightsError(f"layer {name!r} is a {kind}, which is not mapped")
            self._tensors[name] = made
        return self._graph.finish("resnet50", ("input", [3, *sides]), ("output", [classes]))

    def _take_mean_off(self, name: str) -> str:
        # The mean is taken off before the zeros are put around the picture, as in training;
        # folding it into the first bias would be wrong along the edges. The scale can be folded.
        shift = self._graph.constant("input.mean", (-MEAN / SCALE).reshape(1, 3, 1, 1))
        self._input = name
        return self._graph.node("Add", ["input", shift], name)

    def _convolve(self, name: str, config: dict[str, Any], source: str) -> str:
        kernel, bias = self._weight(name, "kernel"), self._weight(name, "bias")
        norms = [one for one in self._layers if one["class_name"] == "BatchNormalization"]
        norm = next(one["config"] for one in norms if one["inbound_nodes"][0][0][0] == name)
        variance = self._weight(norm["name"], "moving_variance")
        factor = 1 / np.sqrt(variance + norm["epsilon"]) * self._weight(norm["name"], "gamma")
        mean, beta = self._weight(norm["name"], "moving_mean"), self._weight(norm["name"], "beta")
        kernel, bias = kernel * factor, (bias - mean) * factor + beta
        if self._tensors[source] == self._input:
            kernel = kernel[:, :, ::-1] * SCALE  # reads RGB where it was trained on BGR
        pads = self._pads.get(source, [0] * 4)
        if config["padding"] == "same":  # of an odd kernel with stride 1
            pads = [side // 2 for side in config["kernel_size"]] * 2
        return self._graph.convolution(
            name, self._tensors[source], kernel, bias, strides=config["strides"], pads=pads
        )

    def _classify(self, name: str, source: str) -> tuple[str, int]:
        kernel = self._weight(name, "kernel")
        weights = self._graph.constant(f"{name}.kernel", kernel.T)
        bias = self._graph.constant(f"{name}.bias", self._weight(name, "bias"))
        made = self._graph.node("Gemm", [source, weights, bias], "output", transB=1)
        return made, kernel.shape[1]

    def _weight(self, layer: str, part: str) -> NDArray[Any]:
        """Return a weight as float64, so that folding rounds once, at the end."""
        return self._weights[f"{layer}/{part}"].astype(np.float64)
