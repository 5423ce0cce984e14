"""Claims of the threat model in SECURITY.md that no other test makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import openvino as ov
import pytest
from onnx import TensorProto, helper

from tests.conftest import PROJECT

SECRET = np.arange(8, dtype=np.float32)


def write_model(folder: Path, location: str) -> Path:
    """Write a model that returns its weights, which are in another file."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "32")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "reader",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return file


def by_onnxruntime(file: Path) -> object:
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.zeros(8, np.float32)})[0]


def by_openvino(file: Path) -> object:
    core = ov.Core()
    model = core.compile_model(core.read_model(file), "CPU")
    return model([np.zeros(8, np.float32)])[0]


@pytest.mark.parametrize("engine", [by_onnxruntime, by_openvino])
def test_a_model_reads_no_file_outside_of_its_folder(
    engine: Callable[[Path], object], tmp_path: Path
) -> None:
    """By a relative path, an absolute one, and a link; one beside it is read."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (tmp_path / "secret", folder / "own"):
        file.write_bytes(SECRET.tobytes())
    (folder / "link").symlink_to("../secret")
    assert np.array_equal(engine(write_model(folder, "own")), SECRET)
    for location in ("../secret", str(tmp_path / "secret"), "link"):
        file = write_model(folder, location)
        with pytest.raises(Exception, match=r"[Pp]ath"):
            engine(file)


def test_the_files_that_enforce_something_exist() -> None:
    text = (PROJECT / "SECURITY.md").read_text()
    named = re.findall(r"\]\(([a-z_/]+\.(?:py|toml))\)", text)
    assert len(named) >= 10
    assert [file for file in named if not (PROJECT / file).is_file()] == []
