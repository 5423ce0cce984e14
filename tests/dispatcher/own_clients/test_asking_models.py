"""Clients that ask another model than their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient

from clients.triton.server import Signature, TensorSpec
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import answering, ask, served

ON_ANOTHER = """
class Mine(Client):
    modelname = "mine"
    model = "m"
    example = {}

    def inference(self, payload):
        return "by the class"
"""


TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}


def on_another(folder: Path) -> FlaskClient:
    server = FakeTriton({"m": lambda inputs: {"x": 2 * inputs["x"]}})
    spec = TensorSpec("x", "FP32", (-1,))
    server.signatures["m"] = Signature(0, (spec,), (spec,))
    return served(folder, ON_ANOTHER, server)


def test_a_class_does_not_hide_the_model_that_it_asks(tmp_path: Path) -> None:
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for route in ("/infer/m", "/models/m/invoke"):
        answer = client.post(route, json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = {
        one["modelName"]: one["client"] for one in (client.get("/models").json or {})["models"]
    }
    assert set(listed) == {"m", "mine"}
    assert listed["m"] is None
    assert (client.get("/models/m").json or {})["state"] == "READY"
    assert ask(client, "n").json["error"]["hint"] in {
        "the served models are: m, mine",
        "the served models are: mine, m",
    }


def test_a_class_does_not_hide_the_family_of_the_model_that_it_asks(tmp_path: Path) -> None:
    folder = tmp_path / "no_models" / "m"  # where `served` looks for models
    folder.mkdir(parents=True)
    (folder / "dispatch.toml").write_text('aliases = ["other-name"]')
    client = on_another(tmp_path)
    assert ask(client).json["result"] == "by the class"
    for name in ("m", "other-name"):
        answer = client.post(f"/infer/{name}", json={"inputs": [TENSOR]}).json or {}
        assert answer["outputs"][0]["data"] == [6.0]
    listed = [one["modelName"] for one in (client.get("/models").json or {})["models"]]
    assert listed == ["m", "mine"]


@pytest.mark.parametrize("way", ["path", "path, encoded", "body", "target", "attributes"])
@pytest.mark.parametrize("name", ["a+b", "_x", "v1.2-c"])
def test_a_model_is_asked_by_any_name_that_it_may_have(tmp_path: Path, name: str, way: str) -> None:
    client = served(tmp_path, answering("'well'").replace('"mine"', repr(name)))
    body: dict[str, Any] = {"payload": {}}
    headers, path = {}, "/invocations"
    if way.startswith("path"):
        path = f"/infer/{quote(name) if 'encoded' in way else name}"
    elif way == "body":
        body["modelname"] = name
    elif way == "target":
        headers["X-Amzn-SageMaker-Target-Model"] = f"{name}.tar.gz"
    else:
        headers["X-Amzn-SageMaker-Custom-Attributes"] = f"modelname={name}"
    answer = client.post(path, json=body, headers=headers)
    assert (answer.json or {}) == {"modelname": name, "result": "well"}
