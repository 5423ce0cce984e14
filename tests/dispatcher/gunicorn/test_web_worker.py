"""gunicorn's worker as it is run here: answers and connections."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http import wsgi
from gunicorn.http.parser import Parser
from gunicorn.workers.gthread import ThreadWorker

from dispatcher.gunicorn import hooks
from dispatcher.gunicorn.worker import WebWorker
from tests.support.web_worker import Pieces, worker


def test_gunicorn_is_the_one_that_the_worker_was_written_for() -> None:
    """Where this fails: read what changed, see whether `dispatcher.gunicorn.worker` still fits."""
    source = "".join(map(inspect.getsource, (ThreadWorker, Parser, wsgi.create, wsgi.Response)))
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == "e1f71a06ed2aea83"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_head_and_body_are_sent_in_one_call(method: str) -> None:
    body = b"x" * 300_000
    pieces = Pieces([body])

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        assert environ["REQUEST_METHOD"] == method
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return pieces

    with worker(application) as (one, connection, theirs):
        theirs.sendall(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        # Nobody reads: it has to fit into the socket.
        assert one.handle(connection) is True
        (sent,) = connection.sock.sent
    head, _, rest = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert rest == (body if method == "GET" else b"")
    assert pieces.closed == 1


def test_the_first_line_goes_out_with_the_head_and_before_the_second_is_made() -> None:
    sent: list[bytes] = []

    def lines() -> Iterator[bytes]:
        assert not sent
        yield b"one\n"
        (first,) = sent
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert first.endswith(b"\r\n\r\n4\r\none\n\r\n")
        yield b"two\n"
        assert sent[1:] == [b"4\r\ntwo\n\r\n"]

    def application(_: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        start_response("200 OK", [])
        return Pieces(lines())

    with worker(application) as (one, connection, theirs):
        sent = connection.sock.sent
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.handle(connection) is True
        assert sent[2:] == [b"0\r\n\r\n"]


def test_an_answer_that_breaks_off_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> Iterator[bytes]:
        yield b"one\n"
        raise ZeroDivisionError

    pieces = Pieces(lines())

    def application(_: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        start_response("200 OK", [])
        return pieces

    with worker(application) as (one, connection, theirs):
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        theirs.shutdown(socket.SHUT_WR)
        assert one.handle(connection) is False
        received = theirs.recv(2**16)
        assert received.endswith(b"one\n\r\n")
        assert theirs.recv(1) == b""
    assert pieces.closed == 1
    assert "ZeroDivisionError" in caplog.text


class NotClosed(Pieces):
    def close(self) -> None:
        raise RuntimeError("at the end of it")


@pytest.mark.parametrize("first", [None, ZeroDivisionError("before its end")])
def test_what_goes_wrong_after_an_answer_hides_neither_it_nor_what_went_wrong_in_it(
    first: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"one\n"
        if first:
            raise first

    def application(_: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        start_response("200 OK", [])
        return NotClosed(lines())

    with worker(application) as (one, connection, theirs):
        theirs.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        if first:
            theirs.shutdown(socket.SHUT_WR)
        assert one.handle(connection) is not bool(first)
    own = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in own] == ["at the end of it"] + [str(first)] * bool(first)


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def asked_twice(
    meanwhile: Callable[[WebWorker], None] = lambda _: None,
) -> tuple[Any, int]:
    """Ask, and again while the first answer is made; return what becomes of it, and the answers."""
    asked = 0

    def answer(_: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        nonlocal asked
        asked += 1
        if asked == 1:
            theirs.sendall(REQUEST)
            meanwhile(one)
        start_response("200 OK", [("Content-Length", "2")])
        return Pieces([b"ok"])

    with worker(answer) as (one, connection, theirs):
        theirs.sendall(REQUEST)
        one.in_hand = 1
        return one.handle(connection), len(connection.sock.sent)


def test_a_thread_takes_the_next_request_of_its_connection_itself() -> None:
    assert asked_twice() == (True, 2)


def test_a_thread_is_given_back_where_others_may_need_it() -> None:
    def others_come(one: WebWorker) -> None:
        one.in_hand = one.cfg.threads

    assert asked_twice(others_come) == (True, 1)


def test_a_worker_that_ends_leaves_the_next_request_to_gunicorn() -> None:
    def end(one: WebWorker) -> None:
        one.alive = False

    assert asked_twice(end) == (True, 1)


def test_gunicorn_s_own_lines_have_a_level_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_FORMAT", "json")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    log = SimpleNamespace(error_log=SimpleNamespace(handlers=[]))
    with (tmp_path / "log").open("wb") as out:
        monkeypatch.setenv("TRITON_DISPATCHER_LOG", str(out.fileno()))
        hooks.on_starting(SimpleNamespace(log=log, murder_workers=None))
        (handler,) = log.error_log.handlers
        handler.handle(logging.makeLogRecord({"levelname": "WARNING", "msg": "it is late"}))
    line = json.loads((tmp_path / "log").read_bytes())
    assert (line["program"], line["level"]) == ("gunicorn", "warning")
    assert line["message"] == "it is late"


def test_old_workers_answer_until_all_new_ones_have_booted(tmp_path: Path) -> None:
    """And one that dies meanwhile is replaced by a new one, not by an old one that stays."""
    workers: dict[int, Any] = {}
    ended: list[int] = []

    def spawn() -> None:
        server.worker_age += 1
        tmp = (tmp_path / str(server.worker_age)).open("w")
        workers[server.worker_age] = SimpleNamespace(
            pid=server.worker_age, age=server.worker_age, tmp=tmp
        )

    server = SimpleNamespace(
        worker_age=0,
        num_workers=2,
        WORKERS=workers,
        spawn_worker=spawn,
        kill_worker=lambda pid, _: ended.append(pid),
    )
    generations = hooks.Generations(server)
    generations.manage()
    assert list(workers) == [1, 2]
    for old in workers.values():
        hooks.post_worker_init(old)
    generations.begin()
    assert list(workers) == [1, 2, 3, 4]
    hooks.post_worker_init(workers[3])
    workers.pop(4).tmp.close()
    generations.manage()
    assert (list(workers), ended) == ([1, 2, 3, 5], [])
    hooks.post_worker_init(workers[5])
    generations.manage()
    assert ended == [1, 2]
    for one in workers.values():
        one.tmp.close()
