"""What an author's own test is told of a model is what the class is told on the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from clients.testing import OnnxModels


@pytest.fixture
def models(tmp_path: Path) -> OnnxModels:
    """Two models that give back what they are given."""
    for name, kind in (("numbers", TensorProto.FLOAT), ("texts", TensorProto.STRING)):
        ends = [helper.make_tensor_value_info(end, kind, [None, 2]) for end in "xy"]
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])], name, ends[:1], ends[1:]
        )
        file = tmp_path / name / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, file)
    return OnnxModels(tmp_path)


def test_an_answer_cannot_be_written_into(models: OnnxModels) -> None:
    """gRPC's answer cannot either, where `scores -= scores.max()` is an error."""
    given = np.ones((1, 2), np.float32)
    scores = models.infer("numbers", {"x": given}, timeout=9)["y"]
    with pytest.raises(ValueError, match="read-only"):
        scores -= scores.max()
    assert scores.tolist() == [[1, 1]]
    given += 1


def test_texts_are_bytes(models: OnnxModels) -> None:
    """They may be sent as either, so that one model's can be sent to another."""
    given = np.array([["one", "zwölf"], [b"three", ""]], np.object_)
    texts = models.infer("texts", {"x": given}, timeout=9)["y"]
    assert texts.tolist() == [[b"one", "zwölf".encode()], [b"three", b""]]
    for again in (texts, texts.astype("S")):
        assert (models.infer("texts", {"x": again}, timeout=9)["y"] == texts).all()
