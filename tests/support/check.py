"""What the tests of `dispatcher check` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.support.models.onnx_models import FLOAT, save

Check = Callable[..., tuple[int, list[dict[str, Any]]]]


def write_class(root: Path, text: str, name: str = "mine.py") -> Path:
    """Write a file of client classes beside the models of a folder."""
    file = root / "code" / "clients" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def write_classes(version: Path, classes: int) -> None:
    """Write a model that takes pictures and has so many classes."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Gather", ["means", "places"], ["y"], axis=1),
    ]
    x, y = [("x", FLOAT, [None, 3, 8, 8])], [("y", FLOAT, [None, classes])]
    save(version / "model.onnx", nodes, x, y, places=np.zeros(classes, np.int64))
