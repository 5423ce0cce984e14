"""/ping, and requests while Triton is silent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients import errors
from clients.triton.server import ModelState
from tests.support.answers import ask
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error

# Health


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_200_and_empty_when_all_is_ready(client: FlaskClient, method: str) -> None:
    response = client.open("/ping", method=method)
    assert (response.status_code, response.data) == (200, b"")


def test_ping_is_503_without_triton(client: FlaskClient, server: FakeTriton) -> None:
    server.ready, server.states = False, errors.ModelUnavailable("nobody")
    assert_error(client.get("/ping"), 503, "not_ready", "Triton is not ready")


def test_ping_names_the_required_model_and_the_reason(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.states = [
        ModelState("resnet", "1", "READY"),
        ModelState("yolov5", "1", "UNAVAILABLE", "no such file"),
        ModelState("optional", "1", "UNAVAILABLE", "nobody asks"),
    ]
    response = client.get("/ping")
    assert_error(response, 503, "not_ready", "'yolov5'", "no such file")
    assert "optional" not in response.text


def test_ping_is_503_when_triton_says_nothing(client: FlaskClient, server: FakeTriton) -> None:
    server.states = errors.DeadlineExceeded("no answer")  # type: ignore[assignment]
    server.ready = False
    assert_error(client.get("/ping"), 503, "not_ready", "no answer")


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
    response = client.post(path, data=json.dumps({"modelname": "plain", "payload": {}}))
    assert_error(response, 503, "model_unavailable")
    assert response.headers["Retry-After"]


def test_lists_lines_and_several_models_are_refused_without_asking_a_silent_triton(
    client: FlaskClient, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.states, server.ready = LATER, False
    client.get("/ping")
    monkeypatch.setattr(server, "models", lambda timeout: pytest.fail("it was asked"))
    body: dict[str, Any] = {"modelname": "plain", "payload": {}}
    listed = ask(client, modelname="plain", payload=[{}, {}])
    assert_error(listed, 503, "model_unavailable")
    lines = client.post(
        "/invocations", data=json.dumps(body), headers={"Content-Type": "application/jsonlines"}
    )
    assert json.loads(lines.data)["error"]["code"] == "model_unavailable"
    several = ask(client, modelname=["plain", "other"], payload={}).json or {}
    assert [one["error"]["code"] for one in several["results"].values()] == [
        "model_unavailable",
        "model_unavailable",
    ]


def test_a_model_with_a_client_is_asked_while_triton_loads_another(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.states = LATER
    response = client.post("/models/double/invoke", data=json.dumps({"payload": {"numbers": [2]}}))
    assert (response.json or {})["result"] == [4.0]
