"""gunicorn's threaded worker, changed to send a response whole or not at all.

gunicorn sends the head of a response, then its body. A worker that is killed in between leaves its
caller with half a response, as NGINX has forwarded the head by then.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.workers.gthread import ThreadWorker

from dispatcher.gunicorn.http_requests import Request, RequestStream

# What fits into the socket's buffer is sent even if the worker is killed. The kernel doubles this
# size, up to twice net.core.wmem_max. (Of 200 workers killed while they sent 1.5 MB again and again
# none cut a response; with 8 MB half of them did.)
SEND_BUFFER = 2**20

# How long a thread waits for the next request on its connection.
KEEPALIVE_WAIT_MS = 20


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

    def __init__(self, request: Request, connection: socket.socket, configuration: Any) -> None:
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

    Args:
        count: how many.

    Raises:
        RuntimeError: the container's limit of processes is too low.

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
            hand = self._idle.pop() if self._idle else None
            if hand is None:
                self._waiting.append(work)
        if hand is not None:
            hand.put(work)
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

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.in_hand = 0  # connections that have a thread, or wait for one

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
        return super().handle(connection)

    def handle_request(self, request: Request, connection: Any) -> bool:
        """Answer a request and those that follow; return whether to keep the connection."""
        while kept := self.answer(request, connection):
            if not self.another_comes(request, connection):
                break
            request = next(connection.parser)
        return kept

    def another_comes(self, request: Request, connection: Any) -> bool:
        """Wait a moment for the next request, unless other connections need the thread."""
        if request.body.unread or not self.alive or 2 * self.in_hand > self.cfg.threads:
            return False
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        return bool(poll.poll(KEEPALIVE_WAIT_MS))

    def answer(self, request: Request, connection: Any) -> bool:
        """Answer a request; return whether to keep its connection.

        Like gunicorn's own `handle_request`, but with another class of response, and without what
        is not used here: its log, hooks, files, a maximum of requests.
        """
        answer = WholeResponse(request, connection.sock, self.cfg)
        if not self.alive or len(self.keepalived_conns) >= self.max_keepalived:
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
