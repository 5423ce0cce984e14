"""Probes of the programs by HTTP, TCP and /proc. None of them raises."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# A busy program answers late; one that is silent for longer than this hangs.
ANSWER_TIMEOUT_S = 4.0
CONNECT_TIMEOUT_S = 0.1


class HttpAnswer(NamedTuple):
    """An HTTP response; status 0 where there was none."""

    status: int
    body: bytes = b""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        self.sock.connect(str(self._path))


def over_tcp(port: int, *, tls: object = None) -> http.client.HTTPConnection:
    """Return a connection to a port on loopback, for which no certificate need be made."""
    if tls:
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        return http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=ANSWER_TIMEOUT_S, context=context
        )
    return http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)


def listens(port: int) -> bool:
    """Whether a program listens on a port of this machine; the kernel answers at once."""
    with socket.socket() as connection:
        connection.settimeout(CONNECT_TIMEOUT_S)
        return connection.connect_ex(("127.0.0.1", port)) != errno.ECONNREFUSED


def has_children(pid: int) -> bool:
    with suppress(OSError):  # it is gone
        return any(
            one.read_text(encoding="utf-8") for one in Path(f"/proc/{pid}/task").glob("*/children")
        )
    return False


def ask(connection: http.client.HTTPConnection, path: str, method: str = "GET") -> HttpAnswer:
    """Send one request and return the response; close the connection."""
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return HttpAnswer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return HttpAnswer(0)
    finally:
        connection.close()
