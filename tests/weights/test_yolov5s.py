"""The graph converter, on a small detector with two heads, computed in numpy from the formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.support.models import plain, tfjs_files
from tests.support.models.tfjs_files import node
from weights.converters import yolov5s
from weights.errors import WeightsError

RANDOM = np.random.default_rng(2)
HEIGHT, WIDTH, CHANNELS, ANCHORS, FIELDS = 8, 16, 4, 2, 6
# Anchors in pixels per head, and the heads' strides.
PIXELS = {"fine": [[2, 3], [5, 4]], "coarse": [[6, 6], [9, 12]]}
STRIDES = {"fine": 2, "coarse": 4}


def draw(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def integers(*numbers: Any) -> Any:
    return np.array(numbers, np.int32)


WEIGHTS: dict[str, Any] = {
    "widths": integers([0, 0], [1, 1], [1, 1], [0, 0]),
    "stem/k": draw(3, 3, 3, CHANNELS),
    "stem/b": draw(CHANNELS),
    "deep/k": draw(3, 3, CHANNELS, CHANNELS) * 0.3,
    "deep/b": draw(CHANNELS),
    "last": np.array(-1, np.int32),
    "channels": np.array(3, np.int32),
    "rows": np.array(1, np.int32),
    "size": integers(4, 8),
    "two": np.array(2, np.float32),
    "order": integers(0, 2, 1, 3),
    "0": integers(0, 0),
    "2": integers(0, 2),
    "4": integers(0, 4),
    "1": integers(1, 1),
}
NODES: list[dict[str, Any]] = [node("Placeholder", "input_1")]


def conv(name: str, source: str, padding: str, stride: int) -> None:
    NODES.append(
        node(
            "_FusedConv2D", name, source, f"{name}/k", f"{name}/b",
            fused_ops=["BiasAdd"], padding=padding, strides=[1, stride, stride, 1],
            dilations=[1, 1, 1, 1],
        )
    )  # fmt: skip


def silu(name: str, source: str) -> None:
    NODES.append(node("Sigmoid", f"{name}/s", source))
    NODES.append(node("Mul", name, source, f"{name}/s"))


def slice_last(name: str, source: str, begin: str, end: str, end_mask: int = 0) -> None:
    masks = {f"{key}_mask": 0 for key in ("begin", "new_axis", "shrink_axis")}
    NODES.append(
        node("StridedSlice", name, source, begin, end, "1",
             ellipsis_mask=1, end_mask=end_mask, **masks)
    )  # fmt: skip


def head(name: str, source: str) -> None:
    """Write a detection head as the YOLOv5 export does: boxes as parts of the input's sides."""
    rows, columns = HEIGHT // STRIDES[name], WIDTH // STRIDES[name]
    y, x = np.mgrid[:rows, :columns]
    cells = np.stack([x, y], -1).reshape(1, 1, -1, 2).astype(np.float32)
    sides = np.array([WIDTH, HEIGHT], np.float32)
    WEIGHTS[f"{name}/k"] = draw(1, 1, CHANNELS * 2, ANCHORS * FIELDS)
    WEIGHTS[f"{name}/b"] = draw(ANCHORS * FIELDS)
    WEIGHTS[f"{name}/split"] = integers(-1, rows * columns, ANCHORS, FIELDS)
    WEIGHTS[f"{name}/grid"] = cells - np.float32(0.5)
    WEIGHTS[f"{name}/stride"] = (STRIDES[name] / sides).reshape(1, 2)
    anchors = (np.array(PIXELS[name]) / sides).astype(np.float32)
    WEIGHTS[f"{name}/anchors"] = anchors.reshape(1, ANCHORS, 1, 2)
    WEIGHTS[f"{name}/flat"] = integers(-1, rows * columns * ANCHORS, FIELDS)
    conv(name, source, "SAME", 1)
    NODES.append(node("Reshape", f"{name}/r", name, f"{name}/split"))
    NODES.append(node("Transpose", f"{name}/t", f"{name}/r", "order"))
    NODES.append(node("Sigmoid", f"{name}/s", f"{name}/t"))
    slice_last(f"{name}/xy", f"{name}/s", "0", "2")
    slice_last(f"{name}/wh", f"{name}/s", "2", "4")
    slice_last(f"{name}/rest", f"{name}/s", "4", "0", end_mask=2)
    NODES.append(node("Mul", f"{name}/xy2", f"{name}/xy", "two"))
    NODES.append(node("Add", f"{name}/xyg", f"{name}/xy2", f"{name}/grid"))
    NODES.append(node("Mul", f"{name}/xyn", f"{name}/xyg", f"{name}/stride"))
    NODES.append(node("Mul", f"{name}/wh2", f"{name}/wh", "two"))
    NODES.append(node("Square", f"{name}/wh4", f"{name}/wh2"))
    NODES.append(node("Mul", f"{name}/whn", f"{name}/wh4", f"{name}/anchors"))
    parts = [f"{name}/{part}" for part in ("xyn", "whn", "rest")]
    NODES.append(node("ConcatV2", f"{name}/join", *parts, "last"))
    NODES.append(node("Reshape", f"{name}/out", f"{name}/join", f"{name}/flat"))


NODES.append(node("Pad", "padded", "input_1", "widths"))
conv("stem", "padded", "VALID", 2)
silu("stem/silu", "stem")
NODES.append(node("Pad", "padded2", "stem/silu", "widths"))
conv("deep", "padded2", "VALID", 2)
silu("deep/silu", "deep")
NODES.append(node("MaxPool", "pool", "deep/silu", ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1],
                  padding="SAME"))  # fmt: skip
NODES.append(node("AddV2", "sum", "pool", "deep/silu"))
NODES.append(node("ConcatV2", "neck", "sum", "deep/silu", "channels"))
NODES.append(node("ResizeNearestNeighbor", "up", "sum", "size"))
NODES.append(node("ConcatV2", "skip", "up", "stem/silu", "channels"))
head("fine", "skip")
head("coarse", "neck")
NODES.append(node("ConcatV2", "all", "fine/out", "coarse/out", "rows"))
NODES.append(node("Identity", "Identity", "all"))
ROWS = ANCHORS * (4 * 8 + 2 * 4)


def expected(images: Any) -> Any:
    """Compute the answer in pixels from the definition: xy = (2σ - 0.5 + cell)·stride and so on."""

    def silu(x: Any) -> Any:
        return x * plain.sigmoid(x)

    def convolve(x: Any, name: str, stride: int = 1) -> Any:
        return plain.convolve(x, WEIGHTS[f"{name}/k"], WEIGHTS[f"{name}/b"], stride)

    def detect(x: Any, name: str) -> Any:
        raw = plain.sigmoid(convolve(x, name))
        rows = []
        for anchor, (wide, high) in enumerate(PIXELS[name]):
            for i in range(raw.shape[1]):
                for j in range(raw.shape[2]):
                    p = raw[:, i, j, anchor * FIELDS : (anchor + 1) * FIELDS]
                    box = [
                        (2 * p[:, 0] - 0.5 + j) * STRIDES[name],
                        (2 * p[:, 1] - 0.5 + i) * STRIDES[name],
                        (2 * p[:, 2]) ** 2 * wide,
                        (2 * p[:, 3]) ** 2 * high,
                    ]
                    rows.append(np.stack([*box, *p[:, 4:].T], -1))
        return np.stack(rows, 1)

    x = images.transpose(0, 2, 3, 1).astype(np.float64)
    stem = silu(convolve(plain.pad(x, 1), "stem", 2))
    deep = silu(convolve(plain.pad(stem, 1), "deep", 2))
    border = np.pad(deep, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    total = plain.max_pool(border, 3, 1) + deep
    up = total.repeat(2, axis=1).repeat(2, axis=2)
    fine = detect(np.concatenate([up, stem], -1), "fine")
    return np.concatenate([fine, detect(np.concatenate([total, deep], -1), "coarse")], 1)


def model(folder: Path, nodes: list[dict[str, Any]]) -> Path:
    constants = [{"op": "Const", "name": name, "attr": {}} for name in WEIGHTS]
    signature = tfjs_files.graph_signature([1, HEIGHT, WIDTH, 3], [1, ROWS, FIELDS])
    topology = {"node": constants + nodes}
    return tfjs_files.write(folder, topology, WEIGHTS, signature)


def test_answers_boxes_in_pixels_of_the_input(tmp_path: Path) -> None:
    converted = yolov5s.convert(model(tmp_path, NODES))
    session = onnxruntime.InferenceSession(converted.SerializeToString())
    images = RANDOM.random((3, 3, HEIGHT, WIDTH), np.float32)
    (rows,) = session.run(["output"], {"images": images})
    assert rows.shape == (3, ROWS, FIELDS)
    np.testing.assert_allclose(rows, expected(images), rtol=1e-4, atol=1e-4)


def test_transposes_only_once_per_head(tmp_path: Path) -> None:
    graph = yolov5s.convert(model(tmp_path, NODES)).graph
    assert [entry.op_type for entry in graph.node].count("Transpose") == 2
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_names_an_operation_that_it_has_no_mapping_for(tmp_path: Path) -> None:
    nodes = [entry | ({"op": "AvgPool"} if entry["name"] == "pool" else {}) for entry in NODES]
    with pytest.raises(WeightsError, match="'pool' is a AvgPool, which is not mapped"):
        yolov5s.convert(model(tmp_path, nodes))
