"""Decoupled models: their answers come one by one, and end where the caller leaves."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest

from tests.conftest import Endpoint, wait_for
from tests.support.sequences import KEYS, ask

PAUSE_S = 0.2  # of the model, after each answer
LINES, EVENTS = "application/jsonlines", "text/event-stream"


@pytest.fixture
def endpoint(stateful: Endpoint) -> Endpoint:
    return stateful


def tensors(number: int, model: str = "countdown") -> dict[str, Any]:
    tensor = {"name": "FROM", "shape": [1], "datatype": "INT32", "data": [number]}
    return {"modelname": model, "inputs": [tensor]}


def down(number: int, model: str = "down", **payload: Any) -> dict[str, Any]:
    return {"modelname": model, "payload": {"number": [number], **payload}}


def outputs(number: int) -> dict[str, Any]:
    """Return the body of one answer."""
    tensor = {"name": "LEFT", "shape": [1], "datatype": "INT32", "data": [number]}
    return {"model_name": "countdown", "outputs": [tensor]}


def begun(
    endpoint: Endpoint, path: str, body: dict[str, Any], accept: str = LINES
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {**KEYS["alice"], "Accept": accept})
    return connection, connection.getresponse()


@pytest.mark.parametrize(
    ("path", "body", "accept", "shown"),
    [
        ("/invocations", tensors(3), LINES, [outputs(3), outputs(2), outputs(1)]),
        ("/invocations", tensors(3), EVENTS, [outputs(3), outputs(2), outputs(1)]),
        ("/infer/down", down(3), LINES, [{"modelname": "down", "result": n} for n in (3, 2, 1)]),
        ("/infer/down", down(3), EVENTS, [{"modelname": "down", "result": n} for n in (3, 2, 1)]),
        (
            "/v2/models/countdown/generate_stream",
            {"FROM": 3},
            "*/*",
            [{"LEFT": n, "model_name": "countdown", "model_version": "1"} for n in (3, 2, 1)],
        ),
    ],
)
def test_each_answer_comes_as_soon_as_it_is_there(
    endpoint: Endpoint, path: str, body: dict[str, Any], accept: str, shown: list[Any]
) -> None:
    connection, response = begun(endpoint, path, body, accept)
    assert response.status == 200
    events = accept != LINES
    assert response.headers["Content-Type"].startswith(EVENTS if events else LINES)
    found, at = [], []
    for line in response:
        if line.strip():
            found.append(json.loads(line.removeprefix(b"data: " if events else b"")))
            at.append(time.monotonic())
    connection.close()
    assert found == shown
    assert at[-1] - at[0] > PAUSE_S  # in one piece they would come at the same time


def test_else_they_come_in_a_list(endpoint: Endpoint) -> None:
    answer = ask(endpoint, tensors(2))
    assert answer.json == {"modelname": "countdown", "result": [outputs(2), outputs(1)]}
    assert ask(endpoint, down(2)).json == {"modelname": "down", "result": [2, 1]}
    assert ask(endpoint, down(0)).json == {"modelname": "down", "result": []}
    several = {**down(2), "payload": [{"number": [2]}, {"number": [1]}]}
    assert ask(endpoint, several).json["result"] == [[2, 1], [1]]
    lines = endpoint.call(
        "/invocations",
        "\n".join(map(json.dumps, (down(2), tensors(1)))),
        headers={**KEYS["alice"], "Content-Type": LINES},
    )
    first, second = map(json.loads, lines.body.splitlines())
    assert (first["status"], first["result"]) == (200, [2, 1])
    assert (second["status"], second["result"]) == (200, [outputs(1)])


def test_an_error_before_the_first_answer_has_its_status(endpoint: Endpoint) -> None:
    for body, status in ((down(3, fails=3), 502), (down(3, x=1) | {"payload": {}}, 400)):
        answer = ask(endpoint, body, Accept=LINES)
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    wrong = tensors(1)
    wrong["inputs"][0]["datatype"] = "FP32"
    assert ask(endpoint, wrong, Accept=EVENTS).json["error"]["code"] == "tensors_refused"


@pytest.mark.parametrize("accept", [LINES, EVENTS])
def test_a_later_error_is_the_last_line(endpoint: Endpoint, accept: str) -> None:
    answer = ask(endpoint, down(3, fails=2), Accept=accept)
    assert answer.status == 200
    first, last = answer.body.decode().replace("data: ", "").split()[0], answer.body.split(b"\n")
    assert json.loads(first) == {"modelname": "down", "result": 3}
    error = json.loads([line for line in last if line][-1].removeprefix(b"data: "))
    assert (error["status"], error["error"]["code"]) == (502, "model_failed")
    assert error["error"]["message"] == "it fell over"


def is_free(endpoint: Endpoint) -> None:
    """Check that the model, which has one process, answers another request soon."""
    began = time.monotonic()
    assert ask(endpoint, down(1)).json["result"] == [1]
    assert time.monotonic() - began < 10 * PAUSE_S


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", tensors(500)),
        ("/infer/down", down(500)),
        ("/v2/models/countdown/generate_stream", {"FROM": 500}),
    ],
)
def test_a_caller_who_leaves_ends_the_run(
    endpoint: Endpoint, path: str, body: dict[str, Any]
) -> None:
    connection, response = begun(endpoint, path, body)
    assert response.readline()
    response.close()
    connection.close()
    is_free(endpoint)
    wait_for(lambda: '"status": 499' in endpoint.log.read_text(), 5, "a line in the log")


@pytest.mark.parametrize("body", [tensors(9, "crawl"), down(9, "crawling")])
def test_a_late_answer_ends_it(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """The limit is that of each line; the whole takes 9 s."""
    began = time.monotonic()
    answer = ask(endpoint, body, query="?timeout_ms=500", Accept=LINES)
    first, last = map(json.loads, answer.body.splitlines())
    assert (first.get("result") or first["outputs"][0]["data"][0]) == 9
    assert (last["status"], last["error"]["code"]) == (504, "deadline_exceeded")
    whole = ask(endpoint, body, query="?timeout_ms=1500")
    assert (whole.status, whole.json["error"]["code"]) == (504, "deadline_exceeded")
    assert time.monotonic() - began < 8


def test_others_are_406(endpoint: Endpoint) -> None:
    assert ask(endpoint, tensors(1), Accept="image/png").status == 406
    number = {"modelname": "total", "inputs": [], "sequence_id": 1}
    assert ask(endpoint, number, Accept=LINES).status == 406


def test_one_answer_below_v2_says_where_all_are_given(endpoint: Endpoint) -> None:
    tensor = {"name": "FROM", "shape": [1], "datatype": "INT32", "data": [2]}
    path = "/v2/models/countdown/infer"
    answer = endpoint.call(path, json.dumps({"inputs": [tensor]}), headers=KEYS["alice"])
    assert answer.status == 400
    assert "generate_stream" in answer.json["error"]
    path = "/v2/models/countdown/generate"
    answer = endpoint.call(path, '{"FROM": 1}', headers=KEYS["alice"])
    assert answer.json == {"LEFT": 1, "model_name": "countdown", "model_version": "1"}
    several = endpoint.call(path, '{"FROM": 2}', headers=KEYS["alice"])
    assert (several.status, "/generate_stream" in several.json["error"]) == (400, True)
    for call in ("generate", "generate_stream"):
        keeps_state = f"/v2/models/total/{call}"
        answer = endpoint.call(keeps_state, '{"X": 1}', headers=KEYS["alice"])
        assert (answer.status, "sequence_id" in answer.json["error"]) == (400, True)
        path = f"/v2/models/countdown/{call}"
        answer = endpoint.call(path, '{"TO": 1}', headers=KEYS["alice"])
        assert (answer.status, "FROM" in answer.json["error"]) == (400, True)
        assert endpoint.call(path, '{"FROM": 1}').status == 401
        path = f"/v2/models/nosuch/{call}"
        assert endpoint.call(path, '{"FROM": 1}', headers=KEYS["alice"]).status == 404
