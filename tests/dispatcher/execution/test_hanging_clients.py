"""Callers who leave, and clients that hang: who is answered, and what is refused."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import Executor, wait
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from clients.images.pictures import room
from dispatcher.execution.admission import Admission
from dispatcher.execution.watchdog import Watchdog, send_timeout
from dispatcher.settings import Settings
from dispatcher.telemetry.request_log import RequestRecord
from tests.conftest import wait_for
from tests.support.slow_clients import Hangs, Model, leave_when_asked, lines, slow
from tests.support.stand_ins import assert_error

CALLS = 4


@pytest.mark.parametrize("in_lines", [False, True])
def test_what_a_caller_who_left_has_not_begun_is_not_begun(
    client: FlaskClient, admission: Admission, pair: Any, in_lines: bool
) -> None:
    """Counted at the model: of 20 batches of 4 payloads one was under way when the caller left."""
    ours, theirs = pair
    admission.calls.per_model = 1
    threading.Thread(target=leave_when_asked, args=(theirs,), daemon=True).start()
    of_ours: Any = {"environ_overrides": {"gunicorn.socket": ours}}
    if in_lines:
        assert len(lines(client, [slow(before=0.1)] * 100, **of_ours)) < 10
    else:
        response = client.post("/infer/slow", json={"payload": [{"before": 0.15}] * 80}, **of_ours)
        assert_error(response, 499, "caller_gone")
    assert 1 <= len(Model.asked) <= (10 if in_lines else 8)
    wait_for(lambda: admission.series.free == admission.series.total, 5, "the series' turn")


# Clients that do not come back


def ask_hanging(app: Flask, pool: Executor, ours: socket.socket, **payload: Any) -> Any:
    return pool.submit(
        app.test_client().post,
        "/infer/hangs?timeout_ms=100",
        json={"payload": payload},
        headers={"X-Request-Id": "my-id"},
        environ_overrides={"gunicorn.socket": ours},
    )


def test_a_caller_of_a_client_that_hangs_is_answered_in_its_place(
    app: Flask,
    admission: Admission,
    settings: Settings,
    pair: Any,
    pool: Executor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the deadline, while the client's thread is still away; what it says later goes nowhere."""
    ours, theirs = pair
    theirs.settimeout(10)
    call = ask_hanging(app, pool, ours)
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
    assert not call.done()
    assert "hangs" not in caplog.text, "a caller's own short time does not make a client a bad one"
    Hangs.free.set()
    assert call.result(5).status_code == 504
    with pytest.raises(BrokenPipeError):
        ours.send(b"what the thread would write")


@pytest.mark.parametrize(
    ("path", "form"), [("/infer/a", dict), ("/v2/models/a/infer", str)], ids=["own", "Triton's"]
)
def test_an_answer_in_the_place_of_a_thread_has_the_form_of_its_path(
    path: str, form: type, pair: Any
) -> None:
    ours, theirs = pair
    send_timeout(ours, RequestRecord(0.0, "my-id", "POST", path, path, 0), "a")
    body = read_all(theirs).partition(b"\r\n\r\n")[2]
    assert isinstance(json.loads(body)["error"], form)


def test_an_error_that_comes_after_the_caller_was_answered_is_in_the_log(
    app: Flask,
    admission: Admission,
    settings: Settings,
    pair: Any,
    pool: Executor,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That its turn cannot be given back as usual neither hides it nor is hidden by it."""
    call = ask_hanging(app, pool, pair[0], fails=True)
    wait_for(lambda: admission.calls.running, 5, "the call")
    later = time.monotonic() + 60
    Watchdog(admission, settings.client_timeout, lambda: None, clock=lambda: later).look()
    Hangs.free.set()
    call.result(10)
    assert "the client of 'hangs' failed in request my-id" in caplog.text
    assert "ValueError: the author's own error" in caplog.text
    assert (
        "a call of 'hangs' failed, and releasing its slot raised: the time for this request"
        in caplog.text
    )
    assert not admission.calls.running


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
    wait_for(lambda: len(admission.calls.running) == CALLS, 5, "the calls")
    watch.look()
    assert "a call of the client of 'hangs' hangs" in caplog.text
    assert "Hangs.free.wait(30)" in caplog.text, "the log says where"
    client = app.test_client()
    assert client.post("/infer/slow", json={"payload": {"n": 1}}).json["result"] == 1
    Hangs.free.set()
    wait(calls, 5)


def test_a_call_whose_picture_waited_for_others_does_not_hang(admission: Admission) -> None:
    """After that it counts again."""
    turns, in_line, may_go = [], threading.Barrier(CALLS + 1, timeout=10), threading.Event()

    def count_hanging() -> int:
        watch.look()
        return sum(turn.hanging for turn in turns)

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
    threads = [threading.Thread(target=call, daemon=True) for _ in range(CALLS)]
    with room.taken(20_000_000, 10_000_000):
        for thread in threads:
            thread.start()
        wait_for(lambda: len(room._queue) == CALLS, 10, "all to wait")
        assert count_hanging() == 0, "they wait for room"
    in_line.wait()
    assert count_hanging() == 0, "they are decoded"
    may_go.set()
    in_line.wait()
    assert count_hanging() == CALLS
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


def test_a_list_or_one_of_several_models_that_hangs_is_answered_in_time(
    client: FlaskClient,
) -> None:
    began = time.monotonic()
    response = client.post("/infer/hangs?timeout_ms=300", json={"payload": [{}, {}]})
    assert_error(response, 504, "deadline_exceeded")
    both = {"modelname": ["hangs", "slow"], "payload": {"n": 5}}
    response = client.post("/invocations?timeout_ms=300", json=both)
    assert time.monotonic() - began < 2
    assert response.json["results"]["slow"] == {"status": 200, "result": 5}
    assert response.json["results"]["hangs"]["status"] == 504
