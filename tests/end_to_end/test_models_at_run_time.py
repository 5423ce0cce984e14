"""Models that are loaded and unloaded while the container runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from tests.conftest import Answer, Endpoint, commands, running
from tests.end_to_end.test_lifecycle import BERT


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


@pytest.mark.slow
def test_roots_narrow_where_models_come_from(adder: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    adder.rename(root / "adder")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.onnx").write_bytes((root / "adder" / "model.onnx").read_bytes())
    (root / "link").symlink_to(outside)
    (root / "inner").mkdir()
    (root / "inner" / "model.onnx").symlink_to(outside / "model.onnx")
    settings = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "MODEL_URL_ROOTS": str(root),
    }
    with running(tmp_path, **settings) as endpoint:
        assert endpoint.call("/ping").status == 200, "no model is required"
        listed = endpoint.call("/models").json
        assert listed["models"] == []
        names = [one["modelName"] for one in listed["available"]]
        assert names == ["bert_base", "resnet", "yolov5"]
        for url in (outside, root / "link", root / "inner", f"{root}/../outside", "/etc"):
            answer = load(endpoint, "m", url)
            assert answer.status == 400, url
            assert "MODEL_URL_ROOTS" in answer.json["error"]["hint"]
        assert load(endpoint, "m", root / "adder").status == 200
        assert endpoint.call("/models/m/invoke", json.dumps(V2)).status == 200
        # The image's own models can still be had, by name.
        assert endpoint.call("/infer/bert_base", json.dumps(BERT)).status == 503
        assert endpoint.call("/load_model/bert_base", method="POST").status == 200
        assert endpoint.call("/infer/bert_base", json.dumps(BERT)).status == 200
        assert endpoint.call("/load_model/nosuch", method="POST").status == 404


@pytest.mark.slow
def test_models_of_the_platform_s_folder_are_served(adder: Path, tmp_path: Path) -> None:
    """Beside the built-in ones or instead of them, and with clients of their own."""
    mounted = tmp_path / "opt_ml_model"
    (mounted / "code" / "clients").mkdir(parents=True)
    adder.rename(mounted / "adder")
    (mounted / "code" / "clients" / "mine.py").write_text(
        "from clients.base import Client\n"
        "class Adder(Client):\n"
        "    modelname = 'adder'\n"
        "    example = {'a': [1, 2, 3]}\n"
        "    def inference(self, payload):\n"
        "        return self.infer({'A': self.numbers(payload, 'a')[None]})['SUM'][0].tolist()\n"
    )
    settings = {"MODEL_DIR": str(mounted), "MODEL_DIR_USE": "instead"}
    with running(tmp_path, **settings) as endpoint:
        answer = endpoint.ask(modelname="adder", payload={"a": [1, 2, 3]})
        assert answer.json == {"modelname": "adder", "result": [2, 4, 6]}
        assert [m["modelName"] for m in endpoint.call("/models").json["models"]] == ["adder"]


# The rest
