"""One budget per request, callers who leave, and clients that never come back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from flask.testing import FlaskClient

from dispatcher import settings as table
from dispatcher.execution.admission import Admission
from dispatcher.execution.slots import Slot, Slots
from tests.support.slow_clients import Left, Model, lines, milliseconds, slow
from tests.support.stand_ins import assert_error

IN_ATTRIBUTES = {"X-Amzn-SageMaker-Custom-Attributes": "timeout_ms=500"}


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({}, 1.8),  # 90 % of MODEL_SERVER_TIMEOUT
        ({"query_string": {"timeout_ms": "500"}}, 0.5),
        ({"headers": IN_ATTRIBUTES}, 0.5),
        ({"query_string": {"timeout_ms": "3600000"}}, 1.8),
        ({"query_string": {"timeout_ms": "1"}, "headers": IN_ATTRIBUTES}, 0.5),
        ({"headers": {"X-Request-Start": "1 s ago"}}, 0.8),
    ],
    ids=["the container's", "query", "attributes", "more than there is", "both", "spent in NGINX"],
)
def test_the_model_gets_what_is_left(client: FlaskClient, arguments: Any, seconds: float) -> None:
    if "X-Request-Start" in arguments.get("headers", {}):
        arguments = {"headers": {"X-Request-Start": str(time.time() - 1)}}
    response = client.post("/infer/left", json={"payload": {}}, **arguments)
    assert response.status_code == 200
    assert seconds - 0.3 < Left.seen <= seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "soon", "1e3", "9999999999", "٣"])
def test_no_time_at_all_is_refused(client: FlaskClient, text: str) -> None:
    response = client.post("/infer/slow?timeout_ms=" + text, json={"payload": {}})
    assert_error(response, 400, "bad_parameter", "timeout_ms", "from 1 to 999999999")
    if text.isascii():
        header = {"X-Amzn-SageMaker-Custom-Attributes": f"timeout_ms={text}"}
        response = client.post("/infer/slow", json={"payload": {}}, headers=header)
        assert_error(response, 400, "bad_parameter", "timeout_ms", "from 1 to 999999999")
    response = client.post("/infer/slow", json={"payload": {}, "timeout_ms": text})
    assert_error(response, 400, "bad_body", "timeout_ms", "into the query")


def test_time_that_was_spent_before_the_model_is_gone(client: FlaskClient) -> None:
    payload = {"before": 0.5, "model": 1}
    response = client.post("/infer/slow?timeout_ms=400", json={"payload": payload})
    assert_error(response, 504, "deadline_exceeded", "Server-Timing")
    assert milliseconds(response, "class") >= 500


@pytest.mark.parametrize("payload", [{"n": 1}, [{"n": 1}]], ids=["a call", "a series"])
def test_time_that_was_spent_on_waiting_is_told_as_that(
    client: FlaskClient, admission: Admission, payload: Any
) -> None:
    for turns in (admission.calls, admission.series):
        turns.per_model = 1
        turns.enter("slow", time.monotonic() + 10)
    response = client.post("/infer/slow?timeout_ms=100", json={"payload": payload})
    assert_error(response, 504, "deadline_exceeded", "waited for a slot", "fewer requests")
    assert milliseconds(response, "queue") >= 100
    assert not Model.asked


def test_what_comes_too_late_is_not_begun(client: FlaskClient) -> None:
    headers = {"X-Request-Start": str(time.time() - 5)}
    response = client.post("/infer/slow", json={"payload": {}}, headers=headers)
    assert_error(response, 504, "deadline_exceeded", "before it got a slot", "fewer requests")
    assert milliseconds(response, "queue") >= 5000
    assert not Model.asked


def test_each_line_has_a_time_of_its_own(client: FlaskClient) -> None:
    asks = [slow(n=0), {"modelname": "hangs", "payload": {}}, slow(n=2, before=0.1), slow(n=3)]
    began = time.monotonic()
    answers = lines(client, asks, query_string={"timeout_ms": "300"})
    assert time.monotonic() - began < 2
    assert [a.get("result") for a in answers] == [0, None, 2, 3]
    assert answers[1]["status"] == 504
    assert answers[1]["error"]["code"] == "deadline_exceeded"


def test_the_whole_stream_has_an_end_and_a_line_for_each_that_was_not_asked(
    client: FlaskClient, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 s are enough for six of these one by one; the others are answered that they were not."""
    monkeypatch.setattr(table, "STREAM_SHARE", 1)
    admission.calls.per_model = 1
    answers = lines(client, [slow(n=n, before=0.3) for n in range(20)])
    assert len(answers) == 20
    done = [a for a in answers if a["status"] == 200]
    assert 2 <= len(done) <= 7
    assert {a["error"]["code"] for a in answers[len(done) :]} == {"deadline_exceeded"}
    assert all(a["error"]["request_id"] for a in answers[len(done) :])
    assert len(Model.asked) <= 8


def test_an_error_late_in_a_list_is_the_last_line(
    client: FlaskClient, admission: Admission, caplog: pytest.LogCaptureFixture
) -> None:
    admission.calls.per_model = 1
    payload = [{"n": n} for n in range(8)] + [{"before": "no number"}]
    headers = {"Accept": "application/jsonlines", "X-Request-Id": "late"}
    response = client.post("/infer/slow", json={"payload": payload}, headers=headers)
    answers = [json.loads(line) for line in response.text.splitlines()]
    assert answers[:8] == list(range(8))
    error = answers[8]["error"]
    said = (error["code"], error["modelname"], error["request_id"])
    assert said == ("client_failed", "slow", "late")
    assert "failed in request late" in caplog.text
    assert len(answers) == 9


def test_an_alias_has_no_turns_beside_those_of_its_model(
    client: FlaskClient, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    enter = Slots.enter

    def noted(self: Slots, model: str, *arguments: Any, **named: Any) -> Slot:
        names.append(model)
        return enter(self, model, *arguments, **named)

    monkeypatch.setattr(Slots, "enter", noted)
    for payload in ({"n": 1}, [{"n": 1}]):
        assert client.post("/infer/slowly", json={"payload": payload}).status_code == 200
    assert set(names) == {"slow"}
