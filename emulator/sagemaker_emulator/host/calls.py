"""Requests to a container, with the service's limits on their time."""

from __future__ import annotations

import http.client
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sagemaker_emulator.trouble import Trouble

PIECE = 64 * 1024
CONNECT_S = 0.25  # until a connection must be accepted


class NoAnswer(Exception):
    """A container did not answer, or not to the end; the text says what happened."""


class TooLate(NoAnswer):
    """It did not answer in time."""


@dataclass(frozen=True)
class Address:
    """Where a container is reached."""

    host: str
    port: int
    secure: bool = False

    def __str__(self) -> str:
        return f"http{'s' * self.secure}://{self.host}:{self.port}"


def address_of(url: str) -> Address:
    """Return the address in a URL; raise Trouble where it has none, or a path."""
    try:
        parts = urlsplit(url)
        host, secure = parts.hostname, parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
    except ValueError:
        host = None
    if not host or parts.path not in ("", "/"):
        raise Trouble(f"{url!r} is no server's address; expected one such as http://127.0.0.1:8080")
    return Address(host, port, secure)


class Answer:
    """The begin of a container's answer, and the rest of it as it comes."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection, self._response = connection, response
        self._sock = connection.sock
        self.status = response.status
        self.headers = response.headers

    def pieces(self, until: float) -> Generator[bytes]:
        """Yield the body as it comes; raise NoAnswer where it ends too early, or too late."""
        length = self._response.length  # None where it is chunked, or ends with the connection
        got = 0
        try:
            while length is None or got < length:
                left = until - time.monotonic()
                if left <= 0:
                    raise TooLate("the answer did not end in time")
                if self._response.fp is None:
                    return
                self._sock.settimeout(left)
                piece = self._response.read1(PIECE)
                if not piece:
                    break
                got += len(piece)
                yield piece
            if length is not None and got < length:
                raise NoAnswer(f"the connection was closed after {got} of {length} bytes")
        except TimeoutError as error:
            raise TooLate("the answer did not end in time") from error
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer("the connection was closed in the middle of the answer") from error
        finally:
            self.close()

    def read(self, until: float) -> bytes:
        return b"".join(self.pieces(until))

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def ask_text(
    address: Address, method: str, path: str, *, until: float, body: bytes = b""
) -> tuple[int, str]:
    """Return the status and the text of an answer; raises as `ask` and `Answer.read`."""
    headers = {"Content-Type": "application/json"} if body else {}
    answer = ask(address, method, path, body, headers, until=until)
    return answer.status, answer.read(until).decode(errors="replace")


def ask(
    address: Address,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    until: float,
) -> Answer:
    """Send a request on a connection of its own; return the begin of the answer.

    Raises TooLate where it has not answered by `until`, of `time.monotonic`, and NoAnswer where it
    does not accept the connection, or closes it.
    """
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=CONNECT_S)
    try:
        connection.connect()
    except TimeoutError as error:
        raise NoAnswer(f"no connection was accepted within {1000 * CONNECT_S:.0f} ms") from error
    except OSError as error:
        raise NoAnswer(f"no connection: {error.strerror or error}") from error
    sock = connection.sock
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has all
            connection.request(method, path, body or None, dict(headers or {}))
        sock.settimeout(max(0.001, until - time.monotonic()))
        response = connection.getresponse()
    except TimeoutError as error:
        connection.close()
        raise TooLate("no answer came in time") from error
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        reason = str(error) or type(error).__name__
        raise NoAnswer(f"the connection was closed without an answer: {reason}") from error
    connection.sock = sock  # http.client forgets it where the connection ends with the answer
    return Answer(connection, response)
