"""Quick looks at the three programs, as their callers see them. None of them ever raises."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 2.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; status 0 where there was none."""

    status: int
    body: bytes = b""

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=LOOK_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LOOK_S)
        self.sock.connect(str(self._path))


def over_tcp(port: int) -> http.client.HTTPConnection:
    """Return a connection to a port of this machine."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=LOOK_S)


def listens(port: int) -> bool:
    """Whether a port of this machine takes connections."""
    with socket.socket() as probe:
        probe.settimeout(LOOK_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(connection: http.client.HTTPConnection, path: str, method: str = "GET") -> Answer:
    """Return the answer to one request; the connection is closed afterwards."""
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, response.read())
    except (OSError, http.client.HTTPException):
        return Answer(0)
    finally:
        connection.close()
