"""One budget per request, callers who leave, and clients that hang."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask
from flask.testing import FlaskClient

from clients.base import Environment
from clients.images.pictures import room
from clients.plugins.registry import Registry
from dispatcher import settings as table
from dispatcher.execution.admission import Admission
from dispatcher.execution.slots import Slot, Slots
from dispatcher.execution.watchdog import Watchdog, send_timeout
from dispatcher.settings import Settings, read_settings
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.wsgi import make_admission
from tests.conftest import PATIENCE_S, PROJECT, wait_for
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.slow_clients import Hangs, Left, Model, Slow, lines, milliseconds, slow
from tests.support.stand_ins import assert_error


@pytest.fixture
def settings() -> Settings:
    return read_settings({"MODEL_SERVER_TIMEOUT": "200"})


@pytest.fixture
def admission(settings: Settings) -> Admission:
    return make_admission(settings)


@pytest.fixture
def app(settings: Settings, admission: Admission) -> Iterator[Flask]:
    Model.asked.clear()
    Model.asks = bool
    Hangs.free.clear()
    environment = Environment(FakeTriton(), PROJECT / "model_repository")
    clients = {c.modelname: c(environment) for c in (Slow, Hangs, Left)}
    registry = Registry(clients, aliases={"slowly": "slow"})
    yield make_app(settings, registry, environment, quiet(), admission)
    Hangs.free.set()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def pool(app: Flask) -> Iterator[Executor]:
    """Threads, for which nobody waits at the end."""
    made = ThreadPoolExecutor()
    yield made
    made.shutdown(wait=False)


IN_ATTRIBUTES = {"X-Amzn-SageMaker-Custom-Attributes": "timeout_ms=90000"}


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({}, 180),  # 90 % of MODEL_SERVER_TIMEOUT
        ({"query_string": {"timeout_ms": "90000"}}, 90),
        ({"headers": IN_ATTRIBUTES}, 90),
        ({"query_string": {"timeout_ms": "3600000"}}, 180),
        ({"query_string": {"timeout_ms": "1"}, "headers": IN_ATTRIBUTES}, 90),
        ({"headers": {"X-Request-Start": "90 s ago"}}, 90),
    ],
    ids=["the container's", "query", "attributes", "more than there is", "both", "spent in NGINX"],
)
def test_the_model_gets_what_is_left(client: FlaskClient, arguments: Any, seconds: float) -> None:
    if "X-Request-Start" in arguments.get("headers", {}):
        arguments = {"headers": {"X-Request-Start": str(time.time() - 90)}}
    response = client.post("/infer/left", json={"payload": {}}, **arguments)
    assert response.status_code == 200
    assert seconds - 50 < Left.seen <= seconds


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
    payload = {"before": 2, "model": 1}
    response = client.post("/infer/slow?timeout_ms=1900", json={"payload": payload})
    assert_error(response, 504, "deadline_exceeded", "Server-Timing")
    assert milliseconds(response, "class") >= 2000


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
    headers = {"X-Request-Start": str(time.time() - 500)}
    response = client.post("/infer/slow", json={"payload": {}}, headers=headers)
    assert_error(response, 504, "deadline_exceeded", "before it got a slot", "fewer requests")
    assert milliseconds(response, "queue") >= 500_000
    assert not Model.asked


def test_each_line_has_a_time_of_its_own(client: FlaskClient, admission: Admission) -> None:
    asks = [slow(n=0), {"modelname": "hangs", "payload": {}}, slow(n=2, before=0.1), slow(n=3)]
    answers = lines(client, asks, query_string={"timeout_ms": "2500"})
    assert admission.calls.running, "it hangs on"
    assert [a.get("result") for a in answers] == [0, None, 2, 3]
    assert answers[1]["status"] == 504
    assert answers[1]["error"]["code"] == "deadline_exceeded"


def test_the_whole_stream_has_an_end_and_a_line_for_each_that_was_not_asked(
    client: FlaskClient, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 s are enough for six of these; the others are answered that they were not."""
    monkeypatch.setattr(table, "STREAM_SHARE", 0.01)
    admission.calls.per_model = 1
    answers = lines(client, [slow(n=n, before=0.3) for n in range(20)])
    assert len(answers) == 20
    done = [a for a in answers if a["status"] == 200]
    assert 1 <= len(done) <= 7
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


CALLS = 4


@pytest.mark.parametrize("in_lines", [False, True])
def test_what_a_caller_who_left_has_not_begun_is_not_begun(
    client: FlaskClient, admission: Admission, pair: Any, in_lines: bool
) -> None:
    """Counted at the model: of 20 batches of 4 payloads one was under way when the caller left."""
    ours, theirs = pair
    admission.calls.per_model = 1
    Model.asks = theirs.close
    of_ours: Any = {"environ_overrides": {"gunicorn.socket": ours}}
    if in_lines:
        assert len(lines(client, [slow()] * 100, **of_ours)) < 10
    else:
        response = client.post("/infer/slow", json={"payload": [{}] * 80}, **of_ours)
        assert_error(response, 499, "caller_gone")
    assert 1 <= len(Model.asked) <= (10 if in_lines else 8)
    wait_for(lambda: admission.series.free == admission.series.total, "the series' turn")


@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_of_a_client_that_hangs_is_answered_in_its_place(
    app: Flask,
    admission: Admission,
    settings: Settings,
    pair: Any,
    pool: Executor,
    caplog: pytest.LogCaptureFixture,
    fails: bool,
) -> None:
    """At the deadline, while the client's thread is still away; what it says later goes nowhere.

    That its turn cannot be given back as usual neither hides its error nor is hidden by it.
    """
    ours, theirs = pair
    theirs.settimeout(PATIENCE_S)
    call = pool.submit(
        app.test_client().post,
        "/infer/hangs?timeout_ms=60000",
        json={"payload": {"fails": fails}},
        headers={"X-Request-Id": "my-id"},
        environ_overrides={"gunicorn.socket": ours},
    )
    wait_for(lambda: admission.calls.running, "the call")
    later = time.monotonic() + 70
    Watchdog(admission, settings.client_timeout, lambda: None, clock=lambda: later).look()
    answer = read_all(theirs)
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"X-Request-Id: my-id\r\n" in answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    error = json.loads(body)["error"]
    assert error["code"] == "deadline_exceeded"
    assert (error["modelname"], error["request_id"]) == ("hangs", "my-id")
    assert not call.done()
    assert "hangs" not in caplog.text, "a caller's own short time does not make a client a bad one"
    Hangs.free.set()
    assert (call.result(PATIENCE_S).status_code == 504) is not fails
    if fails:
        assert "the client of 'hangs' failed in request my-id" in caplog.text
        assert "ValueError: the author's own error" in caplog.text
        raised = "releasing its slot raised: the time for this request"
        assert f"a call of 'hangs' failed, and {raised}" in caplog.text
    with pytest.raises(BrokenPipeError):
        ours.send(b"what the thread would write")
    assert not admission.calls.running


def test_an_answer_in_the_place_of_a_thread_has_the_form_of_its_path() -> None:
    for path, form in (("/infer/a", dict), ("/v2/models/a/infer", str)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            send_timeout(ours, RequestRecord(0.0, "my-id", "POST", path, path, 0), "a")
            body = read_all(theirs).partition(b"\r\n\r\n")[2]
        assert isinstance(json.loads(body)["error"], form)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_where_a_client_hangs_is_in_the_log_and_others_are_answered(
    app: Flask, admission: Admission, pool: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    clock = time.monotonic
    watch = Watchdog(
        admission, 1.8, replace=lambda: pytest.fail("no need"), clock=lambda: clock() + 60
    )
    body = {"payload": {}}
    calls = [pool.submit(app.test_client().post, "/infer/hangs", json=body) for _ in range(CALLS)]
    wait_for(lambda: len(admission.calls.running) == CALLS, "the calls")
    watch.look()
    assert "a call of the client of 'hangs' hangs" in caplog.text
    assert "Hangs.free.wait(PATIENCE_S)" in caplog.text, "the log says where"
    client = app.test_client()
    assert client.post("/infer/slow", json={"payload": {"n": 1}}).json["result"] == 1
    Hangs.free.set()
    wait(calls, PATIENCE_S)


def test_a_call_whose_picture_waited_for_others_does_not_hang(admission: Admission) -> None:
    """After that it counts again."""
    turns, in_line, may_go = [], threading.Barrier(CALLS + 1, timeout=PATIENCE_S), threading.Event()

    def count_hanging() -> int:
        watch.look()
        return sum(turn.hanging for turn in turns)

    def call() -> None:
        turn = admission.calls.enter("large", time.monotonic() + 60)
        turn.since -= 60
        turns.append(turn)
        with room.taken(5_000_000, 10_000_000):
            in_line.wait()
            may_go.wait(PATIENCE_S)
        in_line.wait()
        may_go.wait(PATIENCE_S)

    watch = Watchdog(admission, 1.8, replace=lambda: pytest.fail("no need"))
    threads = [threading.Thread(target=call, daemon=True) for _ in range(CALLS)]
    with room.taken(20_000_000, 10_000_000):
        for thread in threads:
            thread.start()
        wait_for(lambda: len(room._queue) == CALLS, "all to wait")
        assert count_hanging() == 0, "they wait for room"
    in_line.wait()
    assert count_hanging() == 0, "they are decoded"
    may_go.set()
    in_line.wait()
    assert count_hanging() == CALLS
    for thread in threads:
        thread.join(PATIENCE_S)
    for turn in turns:
        turn.release()


def test_a_worker_whose_turns_are_lost_asks_to_be_replaced_once(admission: Admission) -> None:
    replace = Mock()
    watch = Watchdog(admission, 1.8, replace, clock=lambda: time.monotonic() + 60)
    for number in range(11):
        admission.calls.enter(f"model {number}", time.monotonic() + 60)
    watch.look()
    assert not replace.called
    admission.calls.enter("one more", time.monotonic() + 60)
    watch.look()
    watch.look()
    assert replace.call_count == 1


def test_a_worker_that_is_to_end_does_not_wait_for_what_never_ends(admission: Admission) -> None:
    now = time.monotonic()
    end = Mock()
    watch = Watchdog(admission, 1.8, replace=lambda: None, clock=lambda: now, end=end)
    admission.calls.enter("lost", time.monotonic() + 60).since = now - 60
    answering = admission.calls.enter("another", time.monotonic() + 60)
    watch.leaving = True
    watch.look()
    now += 2
    answering.since = now
    watch.look()
    assert not end.called
    answering.release()
    watch.look()
    assert not end.called, "its answer is being sent"
    now += 2
    watch.look()
    assert end.called


def test_a_list_or_one_of_several_models_that_hangs_is_answered_in_time(
    client: FlaskClient, admission: Admission
) -> None:
    response = client.post("/infer/hangs?timeout_ms=300", json={"payload": [{}, {}]})
    assert_error(response, 504, "deadline_exceeded")
    both = {"modelname": ["hangs", "slow"], "payload": {"n": 5}}
    response = client.post("/invocations?timeout_ms=2500", json=both)
    assert admission.calls.running, "it hangs on"
    assert response.json["results"]["slow"] == {"status": 200, "result": 5}
    assert response.json["results"]["hangs"]["status"] == 504
