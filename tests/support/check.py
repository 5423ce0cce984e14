"""What the tests of `dispatcher check` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

Check = Callable[..., tuple[int, list[dict[str, Any]]]]


def write_class(root: Path, text: str, name: str = "mine.py") -> Path:
    """Write a file of client classes beside the models of a folder."""
    file = root / "code" / "clients" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def write_classes(version: Path, classes: int) -> None:
    """Write a model that takes pictures and has so many classes."""
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [None, 3, 8, 8]), ("y", [None, classes]))
    ]
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0),
        onnx.helper.make_node("Gather", ["means", "places"], ["y"], axis=1),
    ]
    places = onnx.numpy_helper.from_array(np.zeros(classes, np.int64), "places")
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [places])
    version.mkdir(parents=True)
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.save(model, version / "model.onnx")
