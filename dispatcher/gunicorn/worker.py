"""gunicorn's threaded worker, changed in how it reads a request and sends a response.

It parses the requests of NGINX itself. gunicorn's own parser trusts no peer, sets up its limits for
each request, and copies a body several times: a quarter of the web worker's Python time for a small
request. Only NGINX and `serve` can reach this socket. NGINX has checked the request line and the
headers, drops names with an underscore, and sends a length for every body.

It sends a response whole or not at all. gunicorn sends the head of a response, then its body. A
worker that is killed in between leaves its caller with half a response, as NGINX has forwarded the
head by then.
"""

from __future__ import annotations

import io
import os
import random
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.http.errors import InvalidRequestLine, NoMoreData, UnsupportedTransferCoding
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import ThreadWorker
from werkzeug.exceptions import ClientDisconnected

# What fits into the socket's buffer is sent even if the worker is killed. The kernel doubles this
# size, up to twice net.core.wmem_max. (Of 200 workers killed while they sent 1.5 MB again and again
# none cut a response; with 8 MB half of them did.)
SEND_BUFFER = 2**20

# How long a thread waits for the next request on its connection.
KEEPALIVE_WAIT_MS = 20

# A connection belongs to one worker. NGINX would keep it for as long as there is load, and a worker
# that starts later would get no requests; so each ends after some seconds, not all at once.
CONNECTION_S = 2.0, 4.0

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
    """The body of a request, of which a part came with the head; reading fails where it breaks off.

    The connection, where the rest is read from, blocks.
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

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, or all."""
        if size is None or size < 0:
            size = self.unread
        begun, self._begun = self._begun[:size], self._begun[size:]
        wanted = min(size - len(begun), self._left)
        if not wanted:
            return begun
        pieces = [begun]
        while wanted:
            pieces.append(piece := self._connection.recv(wanted, socket.MSG_WAITALL))
            if not piece:
                self._left = 0
                raise ClientDisconnected
            wanted -= len(piece)
            self._left -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Any) -> int:
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class WorkerRequest:
    """A request, with the attributes that gunicorn uses."""

    body: Body

    def __init__(self, head: bytes) -> None:
        line, *lines = head.decode("latin-1").split("\r\n")
        try:
            self.method, self.uri, protocol = line.split(" ")
        except ValueError:
            raise InvalidRequestLine(line) from None
        path, _, self.query = self.uri.partition("#")[0].partition("?")
        self.path = util.unquote_to_wsgi_str(path)
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

    def should_close(self) -> bool:
        return self.must_close

    def environ(self, connection: socket.socket) -> dict[str, Any]:
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

    mesg: WorkerRequest | None

    def __next__(self) -> WorkerRequest:
        last = self.mesg
        if last and (last.should_close() or (last.body.unread and not self.finish_body())):
            raise StopIteration
        if not (came := self.unreader.read()):
            raise StopIteration
        while (end := came.find(HEAD_END)) < 0:
            if not (more := self.unreader.read()):
                raise NoMoreData(came)
            came += more
        request = self.mesg = WorkerRequest(came[:end])
        begun = came[end + len(HEAD_END) :]
        if len(begun) > request.length:
            self.unreader.unread(begun[request.length :])
        request.body = Body(begun[: request.length], request.length, self.unreader.sock)
        return request


class BufferedConnection:
    """A connection that sends on `flush` only."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.waiting.append(data)

    def flush(self) -> None:
        """Send all buffered data in one call."""
        if self.waiting:
            data = b"".join(self.waiting)
            self.waiting.clear()
            self.connection.sendall(data)


class WholeResponse(wsgi.Response):  # type: ignore[misc]  # gunicorn has no types
    """A response whose head is sent with the beginning of its body."""

    def __init__(
        self, request: WorkerRequest, connection: socket.socket, configuration: Any
    ) -> None:
        super().__init__(request, BufferedConnection(connection), configuration)

    def default_headers(self) -> list[str]:
        """Return the first lines, without Date and Server: NGINX sends its own."""
        major, minor = self.req.version
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\n",
            f"Connection: {'close' if self.should_close() else 'keep-alive'}\r\n",
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        return lines

    def write(self, piece: bytes) -> None:
        super().write(piece)
        self.sock.flush()

    def close(self) -> None:
        super().close()
        self.sock.flush()


Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """Threads that are started at once; the last one that became idle works next.

    If threads were started on demand, one that exceeds a container's limit would end the worker
    with all its requests. If the threads alternated, as in concurrent.futures, each would begin
    with cold caches.

    Raises RuntimeError: the container's limit of processes is too low.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []
        self._waiting: deque[Work] = deque()
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in a thread, after the ones submitted before."""
        work = Future[Any](), function, arguments
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            else:
                self._waiting.append(work)
        return work[0]

    def _work(self) -> None:
        hand = SimpleQueue[Work]()
        while True:
            with self._lock:
                work = self._waiting.popleft() if self._waiting else None
                if work is None:
                    self._idle.append(hand)
            future, function, arguments = work or hand.get()
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del work, future, function, arguments  # an idle thread keeps no references

    def shutdown(self, *, wait: bool) -> None:
        """Do nothing: the threads end with the process, which has waited for busy ones."""


class WebWorker(ThreadWorker):  # type: ignore[misc]
    """Answers requests in threads.

    After a response the thread waits a moment for the next request on its connection. gunicorn's
    own worker passes every request from the main thread to another and back.
    """

    in_hand = 0  # connections that have a thread, or wait for one

    def get_thread_pool(self) -> ThreadPool:
        """Start the threads; end the worker where the container's limit is too low."""
        try:
            return ThreadPool(self.cfg.threads)
        except RuntimeError:
            self.log.critical(
                "cannot start the %d threads of a web worker: allow the container more "
                "processes (a limit of pids counts threads)",
                self.cfg.threads,
            )
            time.sleep(1)  # until the next one is tried
            os._exit(1)  # an exception here would make gunicorn end all workers

    def enqueue_req(self, connection: Any) -> None:
        self.in_hand += 1
        super().enqueue_req(connection)

    def finish_request(self, connection: Any, outcome: Any) -> None:
        self.in_hand -= 1
        super().finish_request(connection, outcome)

    def handle(self, connection: Any) -> Any:
        """Answer the requests of a connection; return whether it stays open."""
        if not connection.initialized:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            connection.parser = RequestStream(self.cfg, connection.sock, connection.client)
            connection.ends = time.monotonic() + random.uniform(*CONNECTION_S)  # noqa: S311
        return super().handle(connection)

    def handle_request(self, request: WorkerRequest, connection: Any) -> bool:
        """Answer a request and those that follow; return whether to keep the connection."""
        while kept := self.answer(request, connection):
            if not self.another_comes(request, connection):
                break
            request = next(connection.parser)
        return kept

    def another_comes(self, request: WorkerRequest, connection: Any) -> bool:
        """Wait a moment for the next request, unless other connections need the thread."""
        if request.body.unread or not self.alive or 2 * self.in_hand > self.cfg.threads:
            return False
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        return bool(poll.poll(KEEPALIVE_WAIT_MS))

    def answer(self, request: WorkerRequest, connection: Any) -> bool:
        """Answer a request; return whether to keep its connection.

        Like gunicorn's own `handle_request`, but with another class of response, and without what
        is not used here: its log, hooks, files, a maximum of requests.
        """
        answer = WholeResponse(request, connection.sock, self.cfg)
        full = len(self.keepalived_conns) >= self.max_keepalived
        if full or not self.alive or time.monotonic() > connection.ends:
            answer.force_close()
        try:
            pieces = self.wsgi(request.environ(connection.sock), answer.start_response)
            try:
                for piece in pieces:
                    answer.write(piece)
                answer.close()
            finally:
                self.close_answer(pieces)
        except OSError:
            raise  # the connection is gone
        except (Exception, SystemExit):
            if not answer.headers_sent:
                raise  # answered with an error
            self.log.exception("a response broke off")
            util.close_graceful(connection.sock)
            return False
        return not answer.should_close()

    def close_answer(self, pieces: Any) -> None:
        """Close a response; an error before that takes precedence over one of the closing."""
        try:
            pieces.close()
        except Exception:
            self.log.exception("closing a response failed")
