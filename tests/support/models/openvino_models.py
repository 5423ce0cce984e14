"""Small models for OpenVINO, whose answers numpy works out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

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


def line(file: Path) -> None:
    """x [n, 3] float32 -> y = 2 x + (1, 2, 3)"""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "more"], ["y"]),
    ]
    x, y = [("x", FLOAT, ["n", 3])], [("y", FLOAT, ["n", 3])]
    save(file, nodes, x, y, two=np.float32(2)[...], more=np.array([1, 2, 3], np.float32))
