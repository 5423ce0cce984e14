"""Small models for OpenVINO, in both of its formats, whose answers numpy works out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
from onnx import helper
from openvino import opset13 as ops

from tests.support.models.onnx_models import FLOAT, save

WIDTH, CLASSES = 16, 4
_RANDOM = np.random.default_rng(3)
FIRST = _RANDOM.normal(size=(WIDTH, WIDTH)).astype(np.float32)
SECOND = _RANDOM.normal(size=(WIDTH, CLASSES)).astype(np.float32)


def two_layers(file: Path) -> None:
    """x [n, 16] float32 -> y [n, 4], by two matrices with a Relu between them"""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    x, y = [("x", FLOAT, ["n", WIDTH])], [("y", FLOAT, ["n", CLASSES])]
    save(file, nodes, x, y, first=FIRST, second=SECOND)


def scaled(file: Path) -> None:
    """x [n, 3] float32 -> y = 2 (x - 1), by an operator that OpenVINO has not"""
    node = helper.make_node(
        "Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0] * 3, scale=[2.0] * 3
    )
    save(file, [node], [("x", FLOAT, ["n", 3])], [("y", FLOAT, ["n", 3])])


def _save(file: Path, outputs: list[Any], inputs: list[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    openvino.save_model(openvino.Model(outputs, inputs), file, compress_to_fp16=False)


def _named(node: Any, name: str) -> Any:
    node.output(0).get_tensor().set_names({name})
    return node


def line(file: Path) -> None:
    """x [n, 3] float32 -> y = 2 x + (1, 2, 3)"""
    x = _named(ops.parameter([-1, 3], np.float32), "x")
    twice = ops.multiply(x, np.float32(2))
    _save(file, [_named(ops.add(twice, np.array([1, 2, 3], np.float32)), "y")], [x])


def total(file: Path) -> None:
    """x [3] float32 -> total, a scalar"""
    x = _named(ops.parameter([3], np.float32), "x")
    _save(file, [_named(ops.reduce_sum(x, np.array([0]), keep_dims=False), "total")], [x])
