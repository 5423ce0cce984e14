"""The platform's routes: loading, listing and unloading models, and health."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from clients import errors
from clients.base import Environment
from clients.plugins.registry import Registry
from clients.triton.server import ModelState
from dispatcher.execution.admission import Admission
from dispatcher.models.reload import Reloader
from dispatcher.settings import MANAGING, Settings, read_settings
from tests.support.application import make_app, quiet
from tests.support.asking import ask
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error


@pytest.fixture
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.onnx").write_bytes(b"x")
    return folder


def test_load_invoke_list_unload(client: FlaskClient, repository: Path, plain_model: Path) -> None:
    name = "0a1b2c3d"
    assert client.post(f"/models/{name}/invoke", data=b"{").status_code == 404  # unread
    url = f"file://{plain_model}/"
    body = {"model_name": name, "url": url}
    assert client.post("/models", json=body).status_code == 200
    assert (repository / name / "1" / "model.onnx").read_bytes() == b"x"
    assert_error(client.post("/models", json=body), 409, "already_loaded")
    entry = client.get(f"/models/{name}").json or {}
    assert (entry["modelName"], entry["modelUrl"]) == (name, url)
    assert set(entry) == {
        *("modelName", "served_by", "modelUrl", "version", "state"),
        *("client", "weights", "parameters", "media", "example", "examples", "aliases", "batching"),
        "rollout",
    }
    listed = [one["modelName"] for one in (client.get("/models").json or {})["models"]]
    assert name in listed
    for other, share in (("resnet", True), ("yolov5", False)):
        batching = (client.get(f"/models/{other}").json or {})["batching"]
        assert batching == {"max_batch_size": 4, "requests_share_runs": share}
    assert client.delete(f"/models/{name}").status_code == 200
    assert not (repository / name).exists()
    assert client.get(f"/models/{name}").status_code == 404
    assert client.delete(f"/models/{name}").status_code == 404
    assert client.post(f"/models/{name}/invoke", data=b"{").status_code == 404


def test_who_manages_models_and_has_no_turn_in_time_is_told_so(
    server: FakeTriton, built_in: Registry, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "managing_wait", 0.05)
    admission = Admission(1, 1, 9, 1)
    for _ in range(MANAGING):
        admission.management.enter("change", time.monotonic() + 9)
    environment = Environment(server, repository)
    app = make_app(read_settings({}), built_in, environment, quiet(server), admission)
    client = app.test_client()
    response = client.post("/load_model/m")
    assert_error(response, 504, "deadline_exceeded", "other requests load, unload", "UNLOADING")
    assert "send" not in response.text
    assert client.get("/models").status_code == 200


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(
    client: FlaskClient,
    server: FakeTriton,
    repository: Path,
    plain_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = {"model_name": "m", "url": str(plain_model)}
    server.refuse_to_load = "no ONNX file"
    assert_error(client.post("/models", json=body), 400, "bad_model", "no ONNX file")
    monkeypatch.setattr("dispatcher.models.load_unload.free_memory", lambda: 100 * 2**20)
    response = client.post("/models", json=body)
    assert_error(response, 507, "out_of_memory", "150 MiB", "100 MiB")
    assert list(repository.iterdir()) == []
    assert client.get("/ping").status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["not JSON"]),
        (b"[]", ["[]"]),
        (b'{"model_name": "m"}', ["`url` is missing"]),
        (b'{"model_name": 5, "url": "/"}', ["`model_name` is 5"]),
        (b'{"model_name": "../m", "url": "/"}', ["'../m'"]),
        (b'{"model_name": "m", "url": "relative"}', ["'relative'", "absolute"]),
        (b'{"model_name": "m", "url": "/no/such/folder"}', ["/no/such/folder"]),
        (b'{"model_name": "m", "url": "s3://bucket/m"}', ["s3://"]),
        (b'{"model_name": "m", "url": "/etc\\u0000"}', ["`url`"]),
    ],
)
def test_a_bad_load_is_400(client: FlaskClient, body: bytes, words: list[str]) -> None:
    response = client.post("/models", data=body)
    assert response.status_code == 400
    for word in words:
        assert word in response.text


HERE = "http://box:8080"
CHANGES = (
    *(("POST", "/models"), ("POST", "/reload"), ("POST", "/load_model/nothing")),
    *(("DELETE", "/models/nothing"), ("DELETE", "/jobs/nothing")),
    ("POST", "/v2/repository/models/nothing/unload"),
)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),  # curl and the SDKs
        ({"Origin": HERE, "Sec-Fetch-Site": "same-origin"}, False),
        ({"Origin": HERE}, False),  # the page over http
        ({"Origin": "https://front.example", "Sec-Fetch-Site": "same-origin"}, False),  # a proxy
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "http://box:9090", "Sec-Fetch-Site": "same-site"}, True),
        ({"Origin": "null"}, True),  # a frame in a sandbox
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}, False),  # it is named
    ],
)
def test_a_page_of_another_site_changes_nothing(
    client: FlaskClient, headers: dict[str, str], foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain form needs no consent; W3C's Fetch Metadata and RFC 6454 say what browsers send."""
    monkeypatch.setattr(Reloader, "reload", lambda _: ({}, {}))  # which takes a second
    for method, path in CHANGES:
        answer = client.open(path, HERE, method=method, headers=headers)
        assert (answer.status_code == 403) is foreign, answer.text
        assert ("foreign_page" in answer.text or "another site" in answer.text) is foreign


def test_execution_parameters(client: FlaskClient) -> None:
    """One record at a time is what every content type takes; several are for JSON lines alone."""
    assert client.get("/execution-parameters").json == {
        "MaxConcurrentTransforms": 16,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 1,
    }


def test_pages_of_models(client: FlaskClient, server: FakeTriton) -> None:
    server.models_run |= {f"m{i:03}": dict for i in range(150)}
    names, token = [], ""
    while True:
        page = client.get(f"/models?next_page_token={token}").json or {}
        names += [one["modelName"] for one in page["models"]]
        assert len(page["models"]) <= 100
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert len(names) == len(set(names)) == 150 + 7
    assert names == sorted(names)


def test_health_says_what_ping_says(client: FlaskClient, server: FakeTriton) -> None:
    for ping in (client.get("/ping"), client.post("/ping")):
        assert (ping.status_code, ping.data) == (200, b"")
    health = client.get("/health")
    assert health.status_code == 200
    assert (health.json or {})["ready"] is True
    one = next(m for m in (health.json or {})["models"] if m["model"] == "resnet")
    well = {"version": "1", "state": "READY", "reason": "", "required": True, "probe": None}
    assert one == {"model": "resnet", **well}
    server.unloaded.add("resnet")
    assert client.get("/health").status_code == client.get("/ping").status_code == 503
    server.states = [ModelState("resnet", "", "")]  # its configuration was refused
    (one,) = (client.get("/health").json or {})["models"]
    assert one["state"] == "NOT LOADED"
    assert "Triton's log has the reason" in one["reason"]
    assert_error(client.get("/ping"), 503, "not_ready", "Triton's log has the reason")


def test_ping_names_triton_or_the_required_model_and_the_reason(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.ready, server.states = False, errors.ModelUnavailable("nobody")
    assert_error(client.get("/ping"), 503, "not_ready", "Triton is not ready")
    server.states = LATER
    assert_error(client.get("/ping"), 503, "not_ready", "no answer")
    server.ready = True
    server.states = [
        ModelState("resnet", "1", "UNAVAILABLE", "no such file"),
        ModelState("optional", "1", "UNAVAILABLE", "nobody asks"),
    ]
    response = client.get("/ping")
    assert_error(response, 503, "not_ready", "'resnet'", "no such file")
    assert "optional" not in response.text


LATER = errors.DeadlineExceeded("no answer")


@pytest.mark.parametrize("path", ["/invocations?modelname=plain", "/models/plain/invoke"])
@pytest.mark.parametrize("silent_to_the_prober", [True, False])
def test_a_model_without_a_client_is_not_unknown_while_triton_is_silent(
    client: FlaskClient, server: FakeTriton, path: str, silent_to_the_prober: bool
) -> None:
    server.models_run["plain"] = dict
    server.states = LATER
    server.ready = not silent_to_the_prober
    client.get("/ping")
    response = client.post(path, json={"modelname": "plain", "payload": {}})
    assert_error(response, 503, "model_unavailable")
    assert response.headers["Retry-After"]


def test_lists_lines_and_several_without_clients_are_refused_without_asking_a_silent_triton(
    client: FlaskClient, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.states = LATER  # as it loads another
    response = client.post("/models/double/invoke", json={"payload": {"numbers": [2]}})
    assert (response.json or {})["result"] == [4.0], "it has a client"
    server.ready = False
    client.get("/ping")
    monkeypatch.setattr(server, "models", lambda timeout: pytest.fail("it was asked"))
    listed = ask(client, modelname="plain", payload=[{}, {}])
    assert_error(listed, 503, "model_unavailable")
    line = b'{"modelname": "plain", "payload": {}}'
    lines = client.post("/invocations", data=line, content_type="application/jsonlines")
    several = ask(client, modelname=["plain", "other"], payload={}).json or {}
    each = [json.loads(lines.data), *several["results"].values()]
    assert [one["error"]["code"] for one in each] == ["model_unavailable"] * 3
