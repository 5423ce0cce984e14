"""ResNet-50: a Keras model in TensorFlow.js layers format becomes ONNX.

`input` [N,3,H,W] float32, RGB, 0 to 1 → `output` [N,classes] float32 logits; the softmax at the
end is left out. H, W and the number of classes are the stored model's own (224, 224, 1000).

Batch normalisation is folded into the convolution before it: with f = γ / √(σ² + ε), the kernel
becomes k·f and the bias (b − μ)·f + β (Ioffe and Szegedy 2015, algorithm 1, inference).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weights.converters import tfjs
from weights.converters.graph import GraphBuilder, same_padding
from weights.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray

# Keras' "caffe" preprocessing, which ResNet50 was trained with: 0-255, BGR, this mean taken off
# (keras-applications, imagenet_utils.py). Given here in RGB order.
MEAN = np.array([123.68, 116.779, 103.939])
SCALE = 255.0

NO_PADDING = (0, 0, 0, 0)


@dataclass(frozen=True)
class _Value:
    """A layer's output: the tensor, its pending padding and its properties.

    `pads` is top, left, bottom, right; the layer that reads the value applies it.
    """

    tensor: str
    pads: tuple[int, ...] = NO_PADDING
    non_negative: bool = False
    is_input: bool = False
    is_folded: bool = False


def convert(folder: Path) -> onnx.ModelProto:
    """Convert the TensorFlow.js layers model in `folder` to ONNX.

    Raises ConversionError naming the layer, and what about it is not mapped.
    """
    return _ResNetConverter(tfjs.read(folder, "layers-model")).run()


class _ResNetConverter:
    def __init__(self, model: tfjs.TfjsModel) -> None:
        config = model.topology["model_config"]["config"]
        self._weights = model.weights
        self._layers: list[dict[str, Any]] = config["layers"]
        self._outputs = [entry[0] for entry in config["output_layers"]]
        self._readers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for layer in self._layers:
            for source in _sources(layer):
                self._readers[source].append(layer)
        self._graph = GraphBuilder()
        self._values: dict[str, _Value] = {}
        self._input_shape: list[int] = []
        self._classes = 0
        self._map: dict[str, Callable[..., _Value]] = {
            "InputLayer": self._input,
            "ZeroPadding2D": self._zero_padding,
            "Conv2D": self._convolution,
            "BatchNormalization": self._batch_norm,
            "Activation": self._activation,
            "Add": self._add,
            "MaxPooling2D": self._max_pool,
            "GlobalAveragePooling2D": self._average_pool,
            "Dense": self._dense,
        }

    def run(self) -> onnx.ModelProto:
        for layer in self._layers:
            name, kind, config = layer["name"], layer["class_name"], layer["config"]
            if kind not in self._map:
                raise ConversionError(f"layer {name!r} is a {kind}, which is not mapped")
            if config.get("data_format", "channels_last") != "channels_last":
                raise ConversionError(f"layer {name!r} is not channels_last")
            if config.get("dilation_rate", [1, 1]) != [1, 1]:
                raise ConversionError(f"layer {name!r} is dilated, which is not mapped")
            sources = _sources(layer)
            for source in sources:
                if source not in self._values:
                    raise ConversionError(f"layer {name!r} reads {source!r}, which is not there")
            values = [self._values[source] for source in sources]
            try:
                self._values[name] = self._map[kind](name, config, *values)
            except (KeyError, TypeError, ValueError) as error:
                raise ConversionError(
                    f"layer {name!r} is not laid out as a {kind} is: {error!r}"
                ) from error
        if not self._classes:
            raise ConversionError("the model does not end in a Dense layer")
        return self._graph.finish(
            "resnet50", ("input", self._input_shape), ("output", [self._classes])
        )

    def _input(self, name: str, config: dict[str, Any]) -> _Value:
        _, height, width, channels = config["batch_input_shape"]
        if self._input_shape or channels != 3:
            raise ConversionError(f"layer {name!r} is not the one RGB input that is mapped")
        self._input_shape = [channels, height, width]
        # The mean is taken off before the zeros are put around the picture, as in training;
        # folding it into the first bias would be wrong along the edges. The scale can be folded.
        shift = self._graph.constant("input.mean", (-MEAN / SCALE).reshape(1, 3, 1, 1))
        return _Value(self._graph.node("Add", ["input", shift], name), is_input=True)

    def _zero_padding(self, name: str, config: dict[str, Any], value: _Value) -> _Value:
        if value.pads != NO_PADDING:
            raise ConversionError(f"layer {name!r} pads what is padded already")
        (top, bottom), (left, right) = config["padding"]
        return _Value(value.tensor, (top, left, bottom, right), value.non_negative, value.is_input)

    def _convolution(self, name: str, config: dict[str, Any], value: _Value) -> _Value:
        if config["activation"] != "linear":
            raise ConversionError(f"layer {name!r} has activation {config['activation']!r}")
        kernel = self._weight(name, "kernel")
        bias = self._weight(name, "bias") if config["use_bias"] else np.zeros(kernel.shape[-1])
        folded = False
        readers = self._readers[name]
        if len(readers) == 1 and readers[0]["class_name"] == "BatchNormalization":
            kernel, bias = self._fold(readers[0]["config"], kernel, bias)
            folded = True
        if value.is_input:
            kernel = kernel[:, :, ::-1] * SCALE  # reads RGB where it was trained on BGR
        self._graph.node(
            "Conv",
            [
                value.tensor,
                self._graph.constant(f"{name}.kernel", kernel.transpose(3, 2, 0, 1)),
                self._graph.constant(f"{name}.bias", bias),
            ],
            name,
            kernel_shape=config["kernel_size"],
            strides=config["strides"],
            pads=_pads(name, config, config["kernel_size"], value),
        )
        return _Value(name, is_folded=folded)

    def _fold(
        self, norm: dict[str, Any], kernel: NDArray[Any], bias: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        name = norm["name"]
        if norm["axis"] not in (3, [3]):
            raise ConversionError(f"layer {name!r} does not normalise the channels")
        factor = 1 / np.sqrt(self._weight(name, "moving_variance") + norm["epsilon"])
        if norm["scale"]:
            factor = factor * self._weight(name, "gamma")
        folded = (bias - self._weight(name, "moving_mean")) * factor
        if norm["center"]:
            folded = folded + self._weight(name, "beta")
        return kernel * factor, folded

    def _batch_norm(self, name: str, _config: dict[str, Any], value: _Value) -> _Value:
        if not value.is_folded:
            raise ConversionError(f"layer {name!r} does not follow a convolution of its own")
        return _Value(value.tensor)

    def _activation(self, name: str, config: dict[str, Any], value: _Value) -> _Value:
        if config["activation"] != "relu":
            raise ConversionError(f"layer {name!r} has activation {config['activation']!r}")
        self._graph.node("Relu", [_whole(name, value)], name)
        return _Value(name, non_negative=True)

    def _add(self, name: str, _config: dict[str, Any], *values: _Value) -> _Value:
        if len(values) != 2:
            raise ConversionError(f"layer {name!r} adds {len(values)} tensors; two are mapped")
        self._graph.node("Add", [_whole(name, value) for value in values], name)
        return _Value(name)

    def _max_pool(self, name: str, config: dict[str, Any], value: _Value) -> _Value:
        if value.pads != NO_PADDING and not value.non_negative:
            # ONNX pads a maximum with minus infinity; zeros are the same only from zero upwards.
            raise ConversionError(f"layer {name!r} pools a padded tensor that may be negative")
        self._graph.node(
            "MaxPool",
            [value.tensor],
            name,
            kernel_shape=config["pool_size"],
            strides=config["strides"],
            pads=_pads(name, config, config["pool_size"], value),
        )
        return _Value(name, non_negative=value.non_negative)

    def _average_pool(self, name: str, _config: dict[str, Any], value: _Value) -> _Value:
        pooled = self._graph.node("GlobalAveragePool", [_whole(name, value)], f"{name}.mean")
        return _Value(self._graph.node("Flatten", [pooled], name, axis=1))

    def _dense(self, name: str, config: dict[str, Any], value: _Value) -> _Value:
        if self._outputs != [name] or config["activation"] not in ("softmax", "linear"):
            raise ConversionError(f"layer {name!r} is not a classifier at the model's end")
        kernel = self._weight(name, "kernel")
        bias = self._weight(name, "bias") if config["use_bias"] else np.zeros(kernel.shape[1])
        self._classes = kernel.shape[1]
        self._graph.node(
            "Gemm",
            [
                _whole(name, value),
                self._graph.constant(f"{name}.kernel", kernel.T),
                self._graph.constant(f"{name}.bias", bias),
            ],
            "output",
            transB=1,
        )
        return _Value("output")

    def _weight(self, layer: str, part: str) -> NDArray[Any]:
        """Return a weight as float64, so that folding rounds once, at the end."""
        try:
            return self._weights[f"{layer}/{part}"].astype(np.float64)
        except KeyError as error:
            raise ConversionError(f"layer {layer!r} has no weight {part!r}") from error


def _sources(layer: dict[str, Any]) -> list[str]:
    """Return the names of the layers that `layer` reads."""
    calls = layer["inbound_nodes"]
    if len(calls) > 1:
        raise ConversionError(f"layer {layer['name']!r} is used {len(calls)} times; one is mapped")
    return [entry[0] for entry in calls[0]] if calls else []


def _pads(name: str, config: dict[str, Any], kernel: list[int], value: _Value) -> list[int]:
    """Return ONNX `pads`: the zeros put around before, and the layer's own."""
    if config["padding"] == "valid":
        return list(value.pads)
    if config["padding"] == "same" and value.pads == NO_PADDING:
        return same_padding(name, kernel, config["strides"])
    raise ConversionError(f"layer {name!r} pads {config['padding']!r}, which is not mapped here")


def _whole(name: str, value: _Value) -> str:
    """Return the tensor of a value that nothing is still to be put around."""
    if value.pads != NO_PADDING:
        raise ConversionError(f"layer {name!r} reads a padded tensor, which is not mapped")
    return value.tensor
