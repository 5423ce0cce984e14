"""Models that are loaded and unloaded while the container runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from tests.conftest import Answer, Endpoint, commands


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    """A folder with a plain ONNX file: SUM = A + A."""
    folder = tmp_path / "adder"
    folder.mkdir()
    graph = helper.make_graph(
        [helper.make_node("Add", ["A", "A"], ["SUM"])],
        "adder",
        [helper.make_tensor_value_info("A", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("SUM", TensorProto.FLOAT, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, folder / "model.onnx")
    return folder


V2 = {"inputs": [{"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


def load(endpoint: Endpoint, name: str, url: Path | str) -> Answer:
    return endpoint.call("/models", json.dumps({"model_name": name, "url": str(url)}))


@pytest.mark.parametrize("layout", ["plain", "one inside"])
def test_load_invoke_list_unload(endpoint: Endpoint, adder: Path, layout: str) -> None:
    if layout != "plain":
        version = adder / "inner/1"
        version.mkdir(parents=True)
        (adder / "model.onnx").rename(version / "model.onnx")
        (version.parent / "config.pbtxt").write_text(
            'name: "another name"\nbackend: "onnxruntime"\nmax_batch_size: 4\n'
        )
    name = "3f9c2d"
    assert endpoint.call(f"/models/{name}/invoke", json.dumps(V2)).status == 404
    loaded = load(endpoint, name, adder)
    assert loaded.status == 200, loaded.body
    assert load(endpoint, name, adder).status == 409
    answer = endpoint.call(f"/models/{name}/invoke", json.dumps(V2))
    assert answer.status == 200, answer.body
    assert answer.json["outputs"] == [
        {"name": "SUM", "shape": [1, 3], "datatype": "FP32", "data": [2, 4, 6]}
    ]
    listed = {one["modelName"]: one for one in endpoint.call("/models").json["models"]}
    assert listed[name]["modelUrl"] == str(adder)
    assert listed[name]["state"] == "READY"
    assert "ResNet-50" in listed["resnet"]["weights"]
    assert "bert_mini" in listed["bert_base"]["weights"]
    before = len(stubs(endpoint, name))
    assert before >= 1
    assert endpoint.call(f"/models/{name}", method="DELETE").status == 200
    assert not stubs(endpoint, name), "its memory is given back before the answer"
    assert endpoint.call(f"/models/{name}").status == 404
    assert endpoint.call(f"/models/{name}/invoke", json.dumps(V2)).status == 404


def stubs(endpoint: Endpoint, name: str) -> set[int]:
    """Return the processes that run a model."""
    return set(commands(endpoint.process.pid, f"triton_python_backend_stub .*/{name}/"))


def test_a_load_that_fails_harms_nobody(endpoint: Endpoint, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"this is no ONNX file")
    answer = load(endpoint, "broken", broken)
    assert answer.status == 400
    assert answer.json["error"]["code"] == "bad_model"
    assert endpoint.call("/ping").status == 200
    assert endpoint.call("/models/broken").status == 404
    assert load(endpoint, "broken", broken).status == 400, "it can be tried again"


def test_wrong_tensors_are_told_what_the_model_wants(endpoint: Endpoint) -> None:
    answer = endpoint.call("/infer/resnet", json.dumps(V2))
    assert answer.status == 400
    assert "`input` FP32 [-1, 3, 224, 224]" in answer.json["error"]["hint"]
