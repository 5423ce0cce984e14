"""Parses the requests that NGINX sends to gunicorn.

gunicorn's own parser trusts no peer, sets up its limits for each request, and copies a body several
times: a quarter of the web worker's Python time for a small request. Only NGINX and `serve` can
reach this socket. NGINX has checked the request line and the headers, drops names with an
underscore, and sends a length for every body.
"""

from __future__ import annotations

import io
import socket
import sys
from typing import Any

from gunicorn.http.errors import InvalidRequestLine, NoMoreData, UnsupportedTransferCoding
from gunicorn.http.parser import RequestParser
from gunicorn.util import unquote_to_wsgi_str
from werkzeug.exceptions import ClientDisconnected

HEAD_END = b"\r\n\r\n"

# Equal for all requests; names as in PEP 3333. The server's name is a formality, as
# every request has a Host.
ENVIRON = {
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
    "SCRIPT_NAME": "",
    "SERVER_NAME": "localhost",
    "SERVER_PORT": "80",
    "REMOTE_ADDR": "",
}


class Body(io.RawIOBase):
    """The body of a request; reading it fails where it breaks off.

    Args:
        begun: the part that came with the head.
        length: of the whole body, in bytes.
        connection: where the rest is read from; it blocks.

    """

    failed = False  # for gunicorn

    def __init__(self, begun: bytes, length: int, connection: socket.socket) -> None:
        self._begun = begun
        self._left = length - len(begun)
        self._connection = connection

    @property
    def unread(self) -> int:
        """The number of bytes that are still to be read."""
        return len(self._begun) + self._left

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, or all.

        Raises:
            ClientDisconnected: it breaks off, as NGINX closes the connection when a caller leaves.

        """
        if size is None or size < 0:
            size = self.unread
        begun, self._begun = self._begun[:size], self._begun[size:]
        wanted = min(size - len(begun), self._left)
        if not wanted:
            return begun
        pieces = [begun]
        while wanted:
            piece = self._connection.recv(wanted, socket.MSG_WAITALL)
            if not piece:
                self._left = 0
                raise ClientDisconnected
            pieces.append(piece)
            wanted -= len(piece)
            self._left -= len(piece)
        return b"".join(pieces)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class Request:
    """A request, with the attributes that gunicorn uses.

    Args:
        head: request line and headers, without the empty line.

    Raises:
        InvalidRequestLine: the request line is malformed.
        UnsupportedTransferCoding: the body has no length.

    """

    body: Body

    def __init__(self, head: bytes) -> None:
        line, *lines = head.decode("latin-1").split("\r\n")
        try:
            self.method, self.uri, protocol = line.split(" ")
        except ValueError:
            raise InvalidRequestLine(line) from None
        path, _, self.query = self.uri.partition("#")[0].partition("?")
        self.path = unquote_to_wsgi_str(path)
        self.version = (1, 1) if protocol == "HTTP/1.1" else (1, 0)
        self.headers: dict[str, str] = {}
        for one in lines:
            name, _, value = one.partition(":")
            key = name.upper().replace("-", "_")
            value = value.strip(" \t")
            self.headers[key] = f"{self.headers[key]},{value}" if key in self.headers else value
        if "TRANSFER_ENCODING" in self.headers:
            raise UnsupportedTransferCoding(self.headers["TRANSFER_ENCODING"])
        self.length = int(self.headers.get("CONTENT_LENGTH") or 0)
        kept = self.headers.get("CONNECTION", "").lower()
        self.must_close = kept == "close" or (self.version == (1, 0) and kept != "keep-alive")

    def force_close(self) -> None:
        self.must_close = True

    def should_close(self) -> bool:
        return self.must_close

    def environ(self, connection: socket.socket) -> dict[str, Any]:
        """Return the WSGI environment."""
        secure = self.headers.get("X_FORWARDED_PROTO") == "https"
        environ: dict[str, Any] = {
            **ENVIRON,
            "wsgi.input": self.body,
            "wsgi.url_scheme": "https" if secure else "http",
            "gunicorn.socket": connection,
            "REQUEST_METHOD": self.method,
            "RAW_URI": self.uri,
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
            "SERVER_PROTOCOL": "HTTP/1.1" if self.version == (1, 1) else "HTTP/1.0",
        }
        for name, value in self.headers.items():
            environ[f"HTTP_{name}"] = value
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if name in self.headers:
                environ[name] = environ.pop(f"HTTP_{name}")
        return environ


class RequestStream(RequestParser):  # type: ignore[misc]  # gunicorn has no types
    """The requests of one connection."""

    mesg: Request | None

    def __next__(self) -> Request:
        """Return the next request.

        Raises:
            StopIteration: there is none.
            NoMoreData: it breaks off in its head.

        """
        last = self.mesg
        if last and (last.should_close() or (last.body.unread and not self.finish_body())):
            raise StopIteration
        came = self.unreader.read()
        if not came:
            raise StopIteration
        while (end := came.find(HEAD_END)) < 0:
            more = self.unreader.read()
            if not more:
                raise NoMoreData(came)
            came += more
        request = self.mesg = Request(came[:end])
        begun = came[end + len(HEAD_END) :]
        if len(begun) > request.length:
            self.unreader.unread(begun[request.length :])
        request.body = Body(begun[: request.length], request.length, self.unreader.sock)
        return request
