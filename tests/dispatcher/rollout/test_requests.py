"""Which requests get what is tried, in each form of request."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from clients.base import Environment
from clients.plugins.registry import Registry, load_clients
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.application import serve_built_in
from tests.support.asking import stand_in
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.stand_ins import Red, image, resnet
from tool.__main__ import main

BODY: Any = {"payload": {"img": image(Red)}, "parameters": {"format": "objects"}}


def green(inputs: Any) -> Arrays:
    """Take red for class 3: version 2."""
    return {"output": np.roll(resnet(inputs)["output"], -4, axis=1)}


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Without a tokenizer, which takes a while."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("resnet", "yolov5"):
        (folder / name).symlink_to(PROJECT / "model_repository" / name)
    return load_clients(Environment(FakeTriton(), folder))


@pytest.fixture
def server() -> FakeTriton:
    server = stand_in()
    server.models_run |= {"resnet:2": green, "add:2": lambda inputs: {"SUM": inputs["A"] * 10}}
    return server


@pytest.fixture
def client(server: FakeTriton, built_in: Registry, tmp_path: Path) -> FlaskClient:
    settings = replace(read_settings({}), run_dir=tmp_path)
    client = serve_built_in(built_in, Environment(server, tmp_path), settings)
    client.get("/ping")  # has Triton's models listed
    return client


def top(client: FlaskClient, path: str = "/infer/resnet", **headers: str) -> tuple[int, str | None]:
    """Return the class that a picture gets, 7 from version 1 and 3 from 2, and the canary."""
    response = client.post(path, json=BODY, headers=headers)
    return response.json["result"][0]["index"], response.headers.get("X-Canary")


def put(client: FlaskClient, given: Any, model: str = "resnet") -> Any:
    response = client.put(f"/models/{model}/rollout", json=given)
    assert response.status_code == 200, response.text
    return response.json


def test_each_form_of_request_gets_what_is_tried(client: FlaskClient, server: FakeTriton) -> None:
    """One, a list, lines, a stream, several models and tensors; a version that is named stays."""
    assert top(client) == (3, None), "the latest"
    shown = put(client, {"canary": {"version": 2, "share": 1}})
    assert (shown["stable"]["version"], shown["waiting"]) == ("1", {})
    assert top(client) == (3, "version=2")
    assert top(client, "/infer/resnet?modelversion=1") == (7, None)
    payload = {"img": image(Red)}
    body = {"modelname": "resnet", "payload": [payload, payload]}
    for accept in ("application/json", "application/jsonlines", "text/csv"):
        response = client.post("/invocations", json=body, headers={"Accept": accept})
        assert response.headers["X-Canary"] == "version=2"
        assert response.text.count("1.000000:3:") == 2
    asked = len(server.calls)
    lines = b'{"modelname": "resnet", "payload": {"img": "%s"}}\n' % image(Red).encode()
    client.post("/invocations", data=lines * 2, content_type="application/jsonlines")
    client.post("/invocations", json={"modelname": ["resnet", "yolov5"], "payload": payload})
    found = [call["version"] for call in server.calls[asked:] if call["model"] == "resnet"]
    assert found == ["2", "2", "2"]


def test_a_shadow_or_what_fell_back_answers_nobody(client: FlaskClient) -> None:
    put(client, {"shadow": {"version": 2, "share": 1}})
    assert top(client) == (7, None)
    put(client, {"shadow": None, "canary": {"version": 2, "share": 1}})
    assert top(client)[0] == 3
    assert client.post("/models/resnet/rollout/back").json["back"]
    assert top(client) == (7, None)
    assert client.post("/models/resnet/rollout/promote").status_code == 400
    put(client, {"canary": {"share": 1}})
    client.post("/models/resnet/rollout/promote")
    assert top(client) == (3, None), "it is the stable one"
    assert client.delete("/models/resnet/rollout").json["stable"]["version"] == ""


def test_another_model_is_tried_in_the_slot_of_the_one_asked(
    client: FlaskClient, server: FakeTriton
) -> None:
    """Its client reads the payload; the answer has the name that was asked."""
    put(client, {"canary": {"model": "yolov5", "share": 1}})
    response = client.post("/infer/resnet", json={"payload": {"img": image(Red)}})
    assert response.headers["X-Canary"] == "model=yolov5"
    assert response.json["modelname"] == "resnet"
    assert server.calls[-1]["model"] == "yolov5"
    failed = client.post("/infer/resnet", json={"payload": {"text": "a"}})
    assert failed.status_code == 400
    assert failed.headers["X-Canary"] == "model=yolov5", "the error is the canary's"


def test_the_same_key_session_or_sequence_gets_the_same(client: FlaskClient) -> None:
    put(client, {"canary": {"version": 2, "share": 0.5, "sticky": "session"}})
    session = "X-Amzn-SageMaker-Session-Id"
    found = {one: {top(client, **{session: one}) for _ in range(4)} for one in map(str, range(8))}
    assert all(len(tops) == 1 for tops in found.values())
    assert len(set.union(*found.values())) == 2
    for one in map(str, range(8)):  # in a list too
        body = {"payload": [BODY["payload"]]}
        answer = client.post("/infer/resnet", json=body, headers={session: one})
        assert {answer.headers.get("X-Canary")} == {canary for _, canary in found[one]}


def test_tensors_and_models_without_a_class_are_tried_too(client: FlaskClient) -> None:
    put(client, {"canary": {"version": 2, "share": 1}}, "add")
    tensor = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    for path, expected in (("/v2/models/add/infer", 10), ("/v2/models/add/versions/1/infer", 1)):
        answer = client.post(path, json={"inputs": [tensor]}).json
        assert answer["outputs"][0]["data"][0] == expected


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/models/resnet/rollout", b"{", 400),
        ("PUT", "/models/resnet/rollout", b'{"canary": {"version": 2, "share": 2}}', 400),
        ("PUT", "/models/nobody/rollout", b"{}", 404),
        ("GET", "/models/nobody/rollout", b"", 404),
        ("POST", "/models/resnet/rollout/promote", b"", 400),
        ("POST", "/models/resnet/rollout/back", b"", 400),
    ],
)
def test_what_cannot_be_done_is_said_and_serving_goes_on(
    client: FlaskClient, method: str, path: str, body: bytes, status: int
) -> None:
    response = client.open(path, method=method, data=body)
    assert response.status_code == status
    assert response.json["error"]["hint"]
    assert top(client) == (3, None)


def test_the_command_shows_and_changes_a_running_endpoint(
    client: FlaskClient, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_server("127.0.0.1", 0, client.application)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def run(*options: str) -> Any:
        url = f"http://127.0.0.1:{server.server_port}"
        code = main(["rollout", "resnet", *options, "--url", url])
        said = capsys.readouterr()
        return json.loads(said.out) if not code else said.err

    try:
        assert run("--canary", "version=2,share=0.05,sticky=key")["canary"]["sticky"] == "key"
        assert run("--canary", "share=1")["canary"]["version"] == "2"
        assert top(client) == (3, "version=2")
        assert run("--back")["back"] == "sent back by POST /models/resnet/rollout/back"
        assert run("--canary", "none", "--shadow", "version=2,share=0.1")["canary"] is None
        assert run()["shadow"]["share"] == 0.1
        assert run("--forget")["shadow"] is None
        assert "there is no canary to promote\nhint: set one" in run("--promote")
        assert "--canary is '2'; expected NAME=VALUE" in run("--canary", "2")
        assert "one by one" in run("--canary", "share=1", "--back")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
