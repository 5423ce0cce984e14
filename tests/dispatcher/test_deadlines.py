"""One budget per request, callers who leave, and clients that never come back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Client, Environment, Payload
from clients.images.pictures import room
from clients.plugins.registry import Registry
from dispatcher.execution.admission import Admission
from dispatcher.execution.slots import MAX_HANGING, Slot, Slots
from dispatcher.execution.watchdog import Watchdog
from dispatcher.settings import Settings, read_settings
from dispatcher.wsgi import make_admission
from tests.conftest import PROJECT, wait_for
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error


class Slow(Client):
    """Takes its time before it asks the model, and in the model."""

    modelname = "slow"
    example = {"before": 0, "model": 0}

    def inference(self, payload: Payload) -> Any:
        time.sleep(payload.get("before", 0))
        Model.asked.append(payload)
        if model := payload.get("model"):
            self.infer({"seconds": model})
        return payload.get("n")


class Model:
    asked: list[Any] = []


class Hangs(Client):
    """Never comes back, until the test lets it."""

    modelname = "hangs"
    example: Payload = {}
    free = threading.Event()

    def inference(self, payload: Payload) -> Any:
        if payload.get("well"):
            return "well"
        Hangs.free.wait(30)
        if payload.get("fails"):
            raise ValueError("the author's own error")
        return "late"


class Left(Client):
    """Notes how much time it has."""

    modelname = "left"
    example: Payload = {}
    seen = 0.0

    def inference(self, payload: Payload) -> Any:
        Left.seen = self.request.time_left()


@pytest.fixture
def settings() -> Settings:
    return read_settings({"MODEL_SERVER_TIMEOUT": "2", "MODEL_SERVER_STREAM_TIMEOUT": "2"})


@pytest.fixture
def admission(settings: Settings) -> Admission:
    return make_admission(settings)


@pytest.fixture
def app(settings: Settings, admission: Admission) -> Iterator[Flask]:
    Model.asked.clear()
    Hangs.free.clear()
    environment = Environment(FakeTriton(), PROJECT / "model_repository")
    clients = {c.modelname: c(environment) for c in (Slow, Hangs, Left)}
    registry = Registry(clients, aliases={"slowly": "slow"})
    yield make_app(settings, registry, environment, quiet(), admission)
    Hangs.free.set()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def lines(client: FlaskClient, asks: list[Any], **arguments: Any) -> list[Any]:
    body = "\n".join(json.dumps(ask) for ask in asks)
    response = client.post(
        "/invocations", data=body, content_type="application/jsonlines", **arguments
    )
    assert response.status_code == 200, response.text
    answers = [json.loads(line) for line in response.text.splitlines()]
    response.close()
    return answers


def milliseconds(response: TestResponse, phase: str) -> float:
    """Return how long a phase took, as the answer's Server-Timing says."""
    timing = response.headers["Server-Timing"]
    return float(next(p for p in timing.split(", ") if p.startswith(phase)).partition("=")[2])


def slow(**payload: Any) -> dict[str, Any]:
    return {"modelname": "slow", "payload": payload}


# How much time there is


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({}, 1.8),  # 90 % of MODEL_SERVER_TIMEOUT
        ({"query_string": {"timeout_ms": "500"}}, 0.5),
        ({"headers": {"X-Amzn-SageMaker-Custom-Attributes": "timeout_ms=500"}}, 0.5),
        ({"query_string": {"timeout_ms": "3600000"}}, 1.8),
        (
            {
                "query_string": {"timeout_ms": "1"},
                "headers": {"X-Amzn-SageMaker-Custom-Attributes": "timeout_ms=500"},
            },
            0.5,
        ),
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


def test_who_puts_it_into_the_body_is_told_where_it_goes(client: FlaskClient) -> None:
    response = client.post("/infer/slow", json={"payload": {}, "timeout_ms": 100})
    assert_error(response, 400, "bad_body", "timeout_ms", "into the query")


def test_time_that_was_spent_on_decoding_is_gone(client: FlaskClient) -> None:
    response = client.post(
        "/infer/slow?timeout_ms=50", json={"payload": {"before": 0.1, "model": 1}}
    )
    assert_error(response, 504, "deadline_exceeded", "Server-Timing")
    assert milliseconds(response, "decode") >= 100


@pytest.mark.parametrize("payload", [{"n": 1}, [{"n": 1}]], ids=["a call", "a job"])
def test_time_that_was_spent_on_waiting_is_told_as_that(
    client: FlaskClient, admission: Admission, payload: Any
) -> None:
    for turns in (admission.calls, admission.jobs):
        turns.per_model = 1
        turns.enter("slow", time.monotonic() + 10)
    response = client.post("/infer/slow?timeout_ms=100", json={"payload": payload})
    assert_error(response, 504, "deadline_exceeded", "waited for others", "fewer requests")
    assert milliseconds(response, "queue") >= 100
    assert not Model.asked


def test_what_comes_too_late_is_not_begun(client: FlaskClient) -> None:
    headers = {"X-Request-Start": str(time.time() - 5)}
    response = client.post("/infer/slow", json={"payload": {}}, headers=headers)
    assert_error(response, 504, "deadline_exceeded", "before its turn", "fewer requests")
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
    client: FlaskClient, admission: Admission
) -> None:
    """2 s are enough for six of these one by one; the others are answered that they were not."""
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
    response = client.post(
        "/infer/slow",
        json={"payload": payload},
        headers={"Accept": "application/jsonlines", "X-Request-Id": "late"},
    )
    answers = [json.loads(line) for line in response.text.splitlines()]
    assert answers[:8] == list(range(8))
    assert answers[8]["error"]["code"] == "client_failed"
    assert answers[8]["error"]["modelname"] == "slow"
    assert answers[8]["error"]["request_id"] == "late"
    assert "at fault in request late" in caplog.text
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


# Callers who leave


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def leave_when_asked(theirs: socket.socket) -> None:
    wait_for(lambda: Model.asked, 10, "the first call")
    theirs.close()


def test_what_a_caller_who_left_has_not_begun_is_not_begun(
    client: FlaskClient, admission: Admission, pair: Any
) -> None:
    """Counted at the model: of 20 batches of 4 payloads one was under way when the caller left."""
    ours, theirs = pair
    admission.calls.per_model = 1
    leaving = threading.Thread(target=leave_when_asked, args=(theirs,))
    leaving.start()
    response = client.post(
        "/infer/slow",
        json={"payload": [{"before": 0.15}] * 80},
        environ_overrides={"gunicorn.socket": ours},
    )
    leaving.join()
    assert_error(response, 499, "caller_gone")
    assert 1 <= len(Model.asked) <= 8


def test_lines_of_a_caller_who_left_are_not_asked(
    client: FlaskClient, admission: Admission, pair: Any
) -> None:
    ours, theirs = pair
    admission.calls.per_model = 1
    leaving = threading.Thread(target=leave_when_asked, args=(theirs,))
    leaving.start()
    answers = lines(client, [slow(before=0.1)] * 100, environ_overrides={"gunicorn.socket": ours})
    leaving.join()
    assert len(answers) < 10
    assert len(Model.asked) < 10
    wait_for(lambda: admission.jobs.free == admission.jobs.total, 5, "the job's turn")


# Clients that do not come back


def test_a_caller_of_a_client_that_hangs_is_answered_in_its_place(
    app: Flask,
    admission: Admission,
    settings: Settings,
    pair: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the deadline, while the client's thread is still away; what it says later goes nowhere."""
    ours, theirs = pair
    theirs.settimeout(10)
    statuses = []

    def call() -> None:
        response = app.test_client().post(
            "/infer/hangs?timeout_ms=100",
            json={"payload": {}},
            headers={"X-Request-Id": "my-id"},
            environ_overrides={"gunicorn.socket": ours},
        )
        statuses.append(response.status_code)

    thread = threading.Thread(target=call)
    thread.start()
    watch = Watchdog(admission, settings.client_timeout, replace=lambda: None)
    wait_for(lambda: admission.calls.running, 5, "the call")
    time.sleep(0.3)
    watch.look()
    answer = read_all(theirs)
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"X-Request-Id: my-id\r\n" in answer
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    error = json.loads(body)["error"]
    assert error["code"] == "deadline_exceeded"
    assert (error["modelname"], error["request_id"]) == ("hangs", "my-id")
    assert thread.is_alive()
    assert "hangs" not in caplog.text, "a caller's own short time does not make a client a bad one"
    Hangs.free.set()
    thread.join(5)
    assert statuses == [504]
    with pytest.raises(BrokenPipeError):
        ours.send(b"what the thread would write")


def test_an_error_that_comes_after_the_caller_was_answered_is_in_the_log(
    app: Flask,
    admission: Admission,
    settings: Settings,
    pair: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That its turn cannot be given back as usual neither hides it nor is hidden by it."""
    ours, _ = pair
    thread = threading.Thread(
        target=lambda: app.test_client().post(
            "/infer/hangs?timeout_ms=100",
            json={"payload": {"fails": True}},
            headers={"X-Request-Id": "my-id"},
            environ_overrides={"gunicorn.socket": ours},
        )
    )
    thread.start()
    wait_for(lambda: admission.calls.running, 5, "the call")
    later = time.monotonic() + 60
    Watchdog(admission, settings.client_timeout, lambda: None, clock=lambda: later).look()
    Hangs.free.set()
    thread.join(10)
    assert "the client of 'hangs' is at fault in request my-id" in caplog.text
    assert "ValueError: the author's own error" in caplog.text
    assert "a call of 'hangs' failed, and so did its end: the time for this request" in caplog.text
    assert not admission.calls.running


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_model_whose_client_hangs_is_refused_and_others_are_not(
    app: Flask, admission: Admission, caplog: pytest.LogCaptureFixture
) -> None:
    clock = time.monotonic
    watch = Watchdog(
        admission, 1.8, replace=lambda: pytest.fail("no need"), clock=lambda: clock() + 60
    )
    threads = [
        threading.Thread(
            target=lambda: app.test_client().post("/infer/hangs", json={"payload": {}})
        )
        for _ in range(MAX_HANGING)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(admission.calls.running) == MAX_HANGING, 5, "the calls")
    watch.look()
    assert "a call of the client of 'hangs' hangs" in caplog.text
    assert "Hangs.free.wait(30)" in caplog.text, "the log says where"
    client = app.test_client()
    refused = client.post("/infer/hangs", json={"payload": {}})
    assert_error(refused, 503, "model_unavailable", "hang")
    assert "Retry-After" in refused.headers
    assert client.post("/infer/slow", json={"payload": {"n": 1}}).json["result"] == 1
    Hangs.free.set()
    for thread in threads:
        thread.join(5)
    well = client.post("/infer/hangs", json={"payload": {"well": True}})
    assert well.json["result"] == "well", "served again when its calls have come back"


def test_a_call_whose_picture_waited_for_others_does_not_hang(admission: Admission) -> None:
    """As many of them as hanging calls would refuse the model; after that they count again."""
    turns, in_line, may_go = [], threading.Barrier(MAX_HANGING + 1, timeout=10), threading.Event()

    def call() -> None:
        turn = admission.calls.enter("large", time.monotonic() + 60)
        turn.since -= 60
        turns.append(turn)
        with room.taken(5_000_000, 10_000_000):
            in_line.wait()
            may_go.wait(10)
        in_line.wait()
        may_go.wait(10)

    watch = Watchdog(admission, 1.8, replace=lambda: pytest.fail("no need"))
    threads = [threading.Thread(target=call, daemon=True) for _ in range(MAX_HANGING)]
    with room.taken(20_000_000, 10_000_000):
        for thread in threads:
            thread.start()
        wait_for(lambda: len(room._queue) == MAX_HANGING, 10, "all to wait")
        watch.look()
        assert not admission.calls.hanging, "they wait for room"
    in_line.wait()
    watch.look()
    assert not admission.calls.hanging, "they are decoded"
    admission.calls.enter("large", time.monotonic() + 60).release()
    may_go.set()
    in_line.wait()
    watch.look()
    assert admission.calls.hanging == {"large": MAX_HANGING}
    for thread in threads:
        thread.join(10)
    for turn in turns:
        turn.release()


def test_a_worker_whose_turns_are_lost_asks_to_be_replaced_once(admission: Admission) -> None:
    replaced = []
    watch = Watchdog(
        admission, 1.8, lambda: replaced.append(1), clock=lambda: time.monotonic() + 60
    )
    for number in range(11):
        admission.calls.enter(f"model {number}", time.monotonic() + 1)
    watch.look()
    assert not replaced
    admission.calls.enter("one more", time.monotonic() + 1)
    watch.look()
    watch.look()
    assert replaced == [1]


def test_a_worker_that_is_to_end_does_not_wait_for_what_never_ends(admission: Admission) -> None:
    now = time.monotonic()
    ended = []
    watch = Watchdog(
        admission, 1.8, replace=lambda: None, clock=lambda: now, end=lambda: ended.append(1)
    )
    admission.calls.enter("lost", time.monotonic() + 1).since = now - 60
    answering = admission.calls.enter("another", time.monotonic() + 1)
    watch.leaving = True
    watch.look()
    now += 2
    answering.since = now
    watch.look()
    assert not ended
    answering.release()
    watch.look()
    assert not ended, "its answer is being sent"
    now += 2
    watch.look()
    assert ended


def test_a_list_whose_client_hangs_is_answered_in_time(client: FlaskClient) -> None:
    began = time.monotonic()
    response = client.post("/infer/hangs?timeout_ms=300", json={"payload": [{}, {}]})
    assert time.monotonic() - began < 2
    assert_error(response, 504, "deadline_exceeded")


def test_several_models_of_which_one_hangs(client: FlaskClient) -> None:
    began = time.monotonic()
    response = client.post(
        "/invocations?timeout_ms=300", json={"modelname": ["hangs", "slow"], "payload": {"n": 5}}
    )
    assert time.monotonic() - began < 2
    assert response.json["results"]["slow"] == {"status": 200, "result": 5}
    assert response.json["results"]["hangs"]["status"] == 504
