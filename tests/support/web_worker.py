"""A web worker that answers one connection."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gunicorn.config import Config
from gunicorn.workers.gthread import TConn

from dispatcher.gunicorn.worker import WebWorker
from tests.conftest import PATIENCE_S

Application = Callable[[dict[str, Any], Callable[..., Any]], Any]


class Recorded(socket.socket):
    """A socket that notes what it was given in one call."""

    def __init__(self, other: socket.socket) -> None:
        super().__init__(fileno=other.detach())
        self.sent: list[bytes] = []

    def sendall(self, data: Any, *flags: int) -> None:
        self.sent.append(bytes(data))
        self.settimeout(PATIENCE_S)
        super().sendall(data, *flags)


class Pieces:
    """A body as Flask gives it."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = pieces
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)

    def close(self) -> None:
        self.closed += 1


def answering(pieces: Iterable[bytes], *headers: tuple[str, str]) -> Application:
    """Return an application that answers every request with a body."""

    def application(_: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        start_response("200 OK", [*headers])
        return pieces if isinstance(pieces, Pieces) else Pieces(pieces)

    return application


@contextmanager
def worker(application: Application) -> Iterator[tuple[WebWorker, TConn, socket.socket]]:
    """Return a worker that is not run, one of its connections, and the other end of that."""
    ours, theirs = socket.socketpair()
    recorded = Recorded(ours)
    configuration = Config()
    configuration.set("threads", 4)
    one = WebWorker(1, 0, [], None, 15, configuration, logging.getLogger())
    one.wsgi = application
    try:
        with recorded, theirs:
            yield one, TConn(one.cfg, recorded, "", "gunicorn.sock"), theirs
    finally:
        one.tmp.close()


def seen(*sent: bytes, read: Callable[[Any], bytes] = lambda body: bytes(body.read())) -> list[Any]:
    """Send bytes to a worker; return the environment and the body of each request in them."""
    found: list[Any] = []

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Pieces:
        found.append((environ, read(environ["wsgi.input"])))
        start_response("200 OK", [("Content-Length", "0")])
        return Pieces([b""])

    with worker(application) as (one, connection, theirs):
        sending = threading.Thread(target=lambda: [theirs.sendall(piece) for piece in sent])
        sending.start()
        while one.handle(connection) and connection.parser.unreader.buf.getvalue():
            pass
        sending.join()
    return found
