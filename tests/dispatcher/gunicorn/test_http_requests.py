"""How requests are read."""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import Mock

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi
from gunicorn.http.parser import RequestParser
from werkzeug.exceptions import ClientDisconnected

from dispatcher.gunicorn.hooks import skip_after_freeze
from dispatcher.gunicorn.worker import Body
from tests.support.web_worker import answering, seen, worker


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
