"""What the tests of `dispatcher quantize` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import helper
from PIL import Image

from tests.support.models.onnx_models import FLOAT, save
from tool.__main__ import main

SIZE, CLASSES = 24, 5
CONFIG = """backend: "onnxruntime"
max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 3, 24, 24 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""

TOML = 'family = "classification"\nsoftmax = true\ninterpolation = "nearest"\n'
Array = npt.NDArray[Any]


def conv_net(file: Path, head: float = 0.3, bias: float = 0.0) -> None:
    """Write two residual blocks, the second behind 1×1 convolutions with strides, and a head."""
    random = np.random.default_rng(7)
    weights: dict[str, Array] = {
        "w0": random.normal(0, 0.4, (8, 3, 3, 3)),
        "w1": random.normal(0, 0.15, (8, 8, 3, 3)),
        "w2": random.normal(0, 0.35, (8, 8, 1, 1)),
        "w3": random.normal(0, 0.35, (8, 8, 1, 1)),
        "b3": random.normal(0, 0.1, 8),
        "w4": random.normal(0, head, (CLASSES, 8)),
        "b4": np.add(random.normal(0, 0.3, CLASSES), [0, 0, 0, bias, 0]),
    }
    nodes = [
        helper.make_node("Conv", ["in", "w0"], ["c0"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Add", ["c1", "r0"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("Conv", ["r1", "w3", "b3"], ["c3"], kernel_shape=[1, 1], strides=[2, 2]),
        helper.make_node("Add", ["c2", "c3"], ["a3"]),
        helper.make_node("Relu", ["a3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["out"], "head/Gemm", transB=1),
    ]
    pixels, scores = ("in", FLOAT, ["n", 3, SIZE, SIZE]), ("out", FLOAT, ["n", CLASSES])
    held = {name: np.asarray(w, np.float32) for name, w in weights.items()}
    save(file, nodes, [pixels], [scores], **held)


def pictures(folder: Path, count: int) -> list[Path]:
    """Write pictures of one pixel for each that the model sees: nothing is resized."""
    folder.mkdir()
    random = np.random.default_rng(11)
    paths = []
    for number in range(count):
        corners = random.integers(0, 256, (3, 3, 3), np.uint8)
        paths.append(folder / f"{number:02}.png")
        Image.fromarray(corners).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def run_file(file: Path, pixels: Array) -> Array:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["out"], {"in": pixels})[0])


def pixels_of(path: Path) -> Array:
    shown = np.asarray(Image.open(path).convert("RGB"), np.float32)
    return np.ascontiguousarray(shown.transpose(2, 0, 1)[None] / 255)


def softmax(logits: Array) -> Array:
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(shares / shares.sum())


def asked(here: Path, *options: str | Path, samples: str = "samples") -> int:
    given = ["--samples", here / samples, "--repository", here / "models", *options]
    return main(["quantize", "net", *map(str, given)])
