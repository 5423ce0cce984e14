"""Tiny ONNX models that add a number of their own, so that an answer shows which model gave it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper

from tests.conftest import Answer, Endpoint
from tests.support.models.onnx_models import FLOAT, make

CONFIG = """backend: "onnxruntime"
max_batch_size: 4
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "engine" value { string_value: "onnxruntime" } }
"""


def adder(number: float) -> ModelProto:
    """Return a model: SUM = A + number; A and SUM are FP32 [n, 3]."""
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"])]
    a, total = (("A", FLOAT, ["n", 3]), ("SUM", FLOAT, ["n", 3]))
    return make(nodes, [a], [total], B=np.array([number], np.float32))


def files(number: float, client: str = "") -> dict[str, bytes]:
    """Return the files of a model's folder, by their paths in it."""
    made = {"config.pbtxt": CONFIG.encode(), "1/model.onnx": adder(number).SerializeToString()}
    return made | ({"dispatch.toml": client.encode()} if client else {})


def write_adder(folder: Path, number: float, client: str = "") -> None:
    """Write a model's folder."""
    for path, content in files(number, client).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def ask_adder(endpoint: Endpoint, model: str, query: str = "") -> Answer:
    """Send A = [1, 2, 3]."""
    tensor = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return endpoint.call(f"/infer/{model}{query}", json.dumps({"inputs": [tensor]}))


def added(answer: Answer) -> list[float]:
    """Return what a model has added to A."""
    assert answer.status == 200, answer.body
    return [out - a for a, out in zip((1, 2, 3), answer.json["outputs"][0]["data"], strict=True)]
