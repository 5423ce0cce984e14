"""A small graph stands in for the hub's export."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from weights import registries
from weights.converters import fill_mask
from weights.errors import WeightsError

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def export(
    folder: Path,
    inputs: list[str] = INPUTS,
    output: str = "logits",
    batch: str | int = "batch_size",
    inner: str = "inner",
) -> Path:
    """Write a model that answers the sum of its inputs, with a last axis of one."""
    nodes = [
        helper.make_node("Sum", [f"{name}/f" for name in inputs], [inner]),
        helper.make_node("Unsqueeze", [inner, "axis"], [output]),
        # Something that reads the answer, as a second head would.
        helper.make_node("Relu", [output], ["other"]),
    ]
    casts = [helper.make_node("Cast", [n], [f"{n}/f"], to=TensorProto.FLOAT) for n in inputs]
    graph = helper.make_graph(
        casts + nodes,
        "export",
        [helper.make_tensor_value_info(n, TensorProto.INT64, [batch, "sequence"]) for n in inputs],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, "sequence", 1])
            for n in (output, "other")
        ],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [2])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")
    return folder


def test_only_the_name_of_the_answer_changes(tmp_path: Path) -> None:
    model = fill_mask.convert(export(tmp_path))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [value.name for value in session.get_inputs()] == INPUTS
    texts = np.arange(6, dtype=np.int64).reshape(2, 3)
    output, other = session.run(["output", "other"], dict.fromkeys(INPUTS, texts))
    np.testing.assert_array_equal(output, 3.0 * texts[..., None])
    np.testing.assert_array_equal(other, output)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": INPUTS[:2]}, "its inputs are"),
        ({"output": "last_hidden_state"}, "'logits' is not among them"),
        ({"batch": 1}, "'input_ids' is not int64 with two free axes"),
        ({"inner": "output"}, "not valid ONNX"),
    ],
)
def test_refuses_another_export(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        fill_mask.convert(export(tmp_path, **fields))
    (tmp_path / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(WeightsError, match=r"model\.onnx cannot be read"):
        fill_mask.convert(tmp_path)


def test_asks_the_hub_for_these_files_only_and_says_a_failure_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: Any = ModuleType("huggingface_hub")
    hub.errors = SimpleNamespace(EntryNotFoundError=LookupError)
    hub.snapshot_download = Mock(return_value=str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    names = ["model.onnx", "vocab.txt"]
    assert registries.snapshot("someone/text", "main", names) == tmp_path
    hub.snapshot_download.assert_called_once_with(
        "someone/text", revision="main", allow_patterns=names
    )
    for error in (ConnectionError("no route\nand more"), LookupError("no route")):
        hub.snapshot_download.side_effect = error
        with pytest.raises(WeightsError, match=r"^no route$"):
            registries.snapshot("someone/text", "main", [])
