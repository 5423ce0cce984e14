"""gunicorn's worker as it is run here: requests, answers, connections and threads."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.parser import Parser, RequestParser
from gunicorn.workers.gthread import ThreadWorker
from werkzeug.exceptions import ClientDisconnected

from dispatcher.gunicorn import hooks
from dispatcher.gunicorn.hooks import skip_after_freeze
from dispatcher.gunicorn.worker import Body, ThreadPool
from tests.conftest import PATIENCE_S
from tests.support.web_worker import Pieces, answering, seen, worker

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_gunicorn_is_the_one_that_the_worker_was_written_for() -> None:
    """Where this fails: read what changed, see whether `dispatcher.gunicorn.worker` still fits."""
    source = "".join(map(inspect.getsource, (ThreadWorker, Parser, wsgi.create, wsgi.Response)))
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == "e1f71a06ed2aea83"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_head_and_body_are_sent_in_one_call(method: str) -> None:
    body = b"x" * 300_000
    pieces = Pieces([body])
    application = answering(pieces, ("Content-Length", str(len(body))))
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

    with worker(answering(lines())) as (one, connection, theirs):
        sent = connection.sock.sent
        theirs.sendall(REQUEST)
        assert one.handle(connection) is True
        assert sent[2:] == [b"0\r\n\r\n"]


class NotClosed(Pieces):
    def close(self) -> None:
        super().close()
        raise RuntimeError("at the end of it")


@pytest.mark.parametrize("first", [None, ZeroDivisionError("before its end")])
def test_what_goes_wrong_after_an_answer_hides_neither_it_nor_what_went_wrong_in_it(
    first: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"one\n"
        if first:
            raise first

    pieces = NotClosed(lines())
    with worker(answering(pieces)) as (one, connection, theirs):
        theirs.sendall(REQUEST)
        if first:
            theirs.shutdown(socket.SHUT_WR)
        assert one.handle(connection) is not bool(first)
        if first:  # an answer that breaks off ends its connection
            assert theirs.recv(2**16).endswith(b"one\n\r\n")
            assert theirs.recv(1) == b""
    assert pieces.closed == 1
    own = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in own] == ["at the end of it"] + [str(first)] * bool(first)


def asked_twice(**meanwhile: Any) -> tuple[Any, int]:
    """Ask, and again while the first answer is made; return what becomes of it, and the answers."""
    asked = 0

    def answer(_: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        nonlocal asked
        asked += 1
        if asked == 1:
            theirs.sendall(REQUEST)
            vars(one).update(meanwhile)
        start_response("200 OK", [("Content-Length", "2")])
        return Pieces([b"ok"])

    with worker(answer) as (one, connection, theirs):
        theirs.sendall(REQUEST)
        one.in_hand = 1
        return one.handle(connection), len(connection.sock.sent)


def test_a_thread_takes_the_next_request_of_its_connection_itself() -> None:
    """But where others may need it, or the worker ends."""
    assert asked_twice() == (True, 2)
    assert asked_twice(in_hand=4) == (True, 1)
    assert asked_twice(alive=False) == (True, 1)


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
        age = server.worker_age
        tmp = (tmp_path / str(age)).open("w")
        workers[age] = SimpleNamespace(pid=age, age=age, tmp=tmp)

    server = SimpleNamespace(worker_age=0, num_workers=2, WORKERS=workers, spawn_worker=spawn)
    server.kill_worker = lambda pid, _: ended.append(pid)
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


POOL = """
import logging, sys, threading
from gunicorn.config import Config
from dispatcher.gunicorn.worker import WebWorker

room, start = int(sys.argv[1]), threading.Thread.start

def start_where_there_is_room(thread):
    if threading.active_count() > room:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_where_there_is_room
logging.basicConfig(stream=sys.stdout, format="%(message)s")
configuration = Config()
configuration.set("threads", 8)
worker = WebWorker(1, 0, [], None, 15, configuration, logging.getLogger())
pool = worker.get_thread_pool()
print(threading.active_count() - 1)
"""


@pytest.mark.parametrize(
    ("room", "code", "said"), [(8, 0, "8\n"), (7, 1, "cannot start the 8 threads of a web worker")]
)
def test_a_worker_has_all_its_threads_or_does_not_begin(room: int, code: int, said: str) -> None:
    """Started by need, the one that is too many would end it with all that it has in hand."""
    command = [sys.executable, "-c", POOL, str(room)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout[: len(said)]) == (code, said)


def test_work_is_done_in_the_order_in_which_it_comes_and_each_has_its_own_outcome() -> None:
    begun: list[int] = []
    go = threading.Event()

    def do(number: int) -> int:
        begun.append(number)
        go.wait(PATIENCE_S)
        return 12 // number

    pool = ThreadPool(1)
    outcomes = [pool.submit(do, number) for number in (4, 3, 0, 2)]
    go.set()
    assert isinstance(outcomes[2].exception(PATIENCE_S), ZeroDivisionError)
    assert [outcomes[place].result(PATIENCE_S) for place in (0, 1, 3)] == [3, 4, 6]
    assert begun == [4, 3, 0, 2]


def test_the_application_sees_what_gunicorns_own_parser_would_show() -> None:
    head = (
        b"POST /infer/r%C3%A9s%20net?top_k=3&x=%20y#part HTTP/1.1\r\nHost: here:8080\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\nX-Request-Id:  a b \r\n"
        b"Accept: text/plain\r\naccept: */*\r\nX-Name: caf\xe9\r\nEmpty:\r\n\r\n"
    )
    ((environ, body),) = seen(head + b"{}")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head + b"{}")
        parser = RequestParser(Config(), ours, "")
        _, expected = wsgi.create(next(parser), ours, "", "gunicorn.sock", Config())
    assert body == b"{}"
    differ = {"wsgi.input", "wsgi.errors", "gunicorn.socket", "SERVER_SOFTWARE", "SERVER_NAME"} | {
        *("wsgi.file_wrapper", "wsgi.early_hints", "wsgi.multithread", "wsgi.multiprocess"),
        "SERVER_PORT",
    }
    assert {k: v for k, v in environ.items() if k not in differ} == {
        k: v for k, v in expected.items() if k not in differ
    }


PICTURE = bytes(range(256)) * 1024
WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(PICTURE) + PICTURE


@pytest.mark.parametrize("cut", [10, 60, 80, 100, 8192, 100_000])
def test_a_request_may_come_in_pieces(cut: int) -> None:
    ((_, body),) = seen(WHOLE[:cut], WHOLE[cut:])
    assert body == PICTURE


def test_a_body_is_read_in_pieces_too() -> None:
    def in_pieces(body: Any) -> bytes:
        first, line, rest = body.read(10), body.readline(), bytearray(7)
        assert body.readinto(rest) == 7
        pieces = [first, line, bytes(rest), *iter(lambda: body.read(65536), b"")]
        assert body.read() == body.read(1) == b""
        return b"".join(pieces)

    ((_, body),) = seen(WHOLE, read=in_pieces)
    assert body == PICTURE


def test_what_was_not_read_is_not_taken_for_the_next_request() -> None:
    unread = b"GET /no HTTP/1.1\r\n\r\n"
    first = b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n" + unread
    found = seen(first + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n", read=lambda body: b"")
    assert [environ["PATH_INFO"] for environ, _ in found] == ["/1", "/2"]


def test_workers_are_not_judged_soon_after_they_were_frozen() -> None:
    times = [0.0]
    judged: list[float] = []
    look = skip_after_freeze(lambda: judged.append(times[-1]), lambda: times[-1])
    for now in (1.0, 2.0, 22.0, 23.0, 25.0, 28.0, 29.0):
        times.append(now)
        look()
    assert judged == [1.0, 2.0, 28.0, 29.0]


def test_a_body_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(b"56")
        body = Body(b"1234", 10, ours)
        assert body.read(3) == b"123"
        with pytest.raises(ClientDisconnected):
            body.read()
        assert body.unread == 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
    ],
)
def test_what_nginx_would_not_send_is_refused(request_: bytes, status: int) -> None:
    with worker(Mock(side_effect=AssertionError("it was asked"))) as (one, connection, theirs):
        theirs.sendall(request_)
        assert one.handle(connection) is False
        assert theirs.recv(2**16).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_where_its_other_end_keeps_it(line: bytes, *, kept: bool) -> None:
    with worker(answering([b""], ("Content-Length", "0"))) as (one, connection, theirs):
        theirs.sendall(line)
        assert one.handle(connection) is kept
