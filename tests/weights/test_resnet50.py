"""The layers converter, on a small residual network whose answer is computed layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.support.models import plain, tfjs_files
from tests.support.models.tfjs_files import layer
from weights.converters import resnet50
from weights.errors import WeightsError

RANDOM = np.random.default_rng(1)
# Keras' "caffe" preprocessing, in the order of the channels that it makes: blue, green, red.
MEAN_BGR = np.array([103.939, 116.779, 123.68])
EPSILON = 0.001


def conv(name: str, source: str, size: int, stride: int, padding: str) -> dict[str, Any]:
    return layer(
        "Conv2D",
        name,
        [source],
        kernel_size=[size, size],
        strides=[stride, stride],
        padding=padding,
        activation="linear",
        use_bias=True,
        dilation_rate=[1, 1],
        data_format="channels_last",
    )


def norm(name: str, source: str) -> dict[str, Any]:
    return layer(
        "BatchNormalization", name, [source], axis=[3], epsilon=EPSILON, scale=True, center=True
    )


LAYERS = [
    layer("InputLayer", "input_1", [], batch_input_shape=[None, 12, 10, 3]),
    layer("ZeroPadding2D", "pad1", ["input_1"], padding=[[1, 1], [1, 1]]),
    conv("conv1", "pad1", 3, 2, "valid"),
    norm("bn1", "conv1"),
    layer("Activation", "relu1", ["bn1"], activation="relu"),
    layer("ZeroPadding2D", "pad2", ["relu1"], padding=[[1, 1], [1, 1]]),
    layer("MaxPooling2D", "pool", ["pad2"], pool_size=[3, 3], strides=[2, 2], padding="valid"),
    conv("conv2", "pool", 3, 1, "same"),
    norm("bn2", "conv2"),
    layer("Add", "add", ["bn2", "pool"]),
    layer("Activation", "relu2", ["add"], activation="relu"),
    layer("GlobalAveragePooling2D", "mean", ["relu2"]),
    layer("Dense", "fc", ["mean"], activation="softmax", use_bias=True),
]


def draw(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


WEIGHTS = {
    "conv1/kernel": draw(3, 3, 3, 4) * 0.01,
    "conv1/bias": draw(4),
    "conv2/kernel": draw(3, 3, 4, 4),
    "conv2/bias": draw(4),
    "fc/kernel": draw(4, 5),
    "fc/bias": draw(5),
} | {
    f"{name}/{part}": np.abs(draw(4)) + 0.1 if part == "moving_variance" else draw(4)
    for name in ("bn1", "bn2")
    for part in ("gamma", "beta", "moving_mean", "moving_variance")
}


def expected(images: Any) -> Any:
    """Compute the network as it was trained: nothing folded, BGR, mean off before the padding."""

    def normalise(x: Any, name: str) -> Any:
        w = {
            key: WEIGHTS[f"{name}/{key}"].astype(np.float64)
            for key in ("gamma", "beta", "moving_mean", "moving_variance")
        }
        return (x - w["moving_mean"]) / np.sqrt(w["moving_variance"] + EPSILON) * w["gamma"] + w[
            "beta"
        ]

    def convolve(x: Any, name: str, stride: int) -> Any:
        return plain.convolve(x, WEIGHTS[f"{name}/kernel"], WEIGHTS[f"{name}/bias"], stride)

    x = images.transpose(0, 2, 3, 1).astype(np.float64)[..., ::-1] * 255 - MEAN_BGR
    x = np.maximum(normalise(convolve(plain.pad(x, 1), "conv1", 2), "bn1"), 0)
    pooled = plain.max_pool(plain.pad(x, 1), 3, 2)
    x = normalise(convolve(plain.pad(pooled, 1), "conv2", 1), "bn2")
    x = np.maximum(x + pooled, 0).mean(axis=(1, 2))
    return x @ WEIGHTS["fc/kernel"] + WEIGHTS["fc/bias"]


def model(folder: Path, layers: list[dict[str, Any]] = LAYERS) -> Path:
    topology = {"model_config": {"config": {"layers": layers}}}
    return tfjs_files.write(folder, topology, WEIGHTS)


def test_answers_the_logits_of_the_unfolded_network(tmp_path: Path) -> None:
    converted = resnet50.convert(model(tmp_path))
    session = onnxruntime.InferenceSession(converted.SerializeToString())
    images = RANDOM.random((3, 3, 12, 10), np.float32)
    (logits,) = session.run(["output"], {"input": images})
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected(images), rtol=1e-4, atol=1e-3)


def test_batch_norms_and_the_softmax_are_gone_and_the_batch_is_free(tmp_path: Path) -> None:
    graph = resnet50.convert(model(tmp_path)).graph
    assert {node.op_type for node in graph.node} == {
        "Add", "Conv", "Relu", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm",
    }  # fmt: skip
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_names_a_layer_that_it_has_no_mapping_for(tmp_path: Path) -> None:
    layers = [*LAYERS[:-2], layer("Dropout", "drop", ["relu2"])]
    with pytest.raises(WeightsError, match="'drop' is a Dropout, which is not mapped"):
        resnet50.convert(model(tmp_path, layers))
