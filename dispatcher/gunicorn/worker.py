"""gunicorn's worker with threads, as it is run here: an answer is sent whole, or not at all.

gunicorn sends the head of an answer, then its body. Killed in between, a worker would leave its
caller with half an answer, for NGINX has sent the head on by then.
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

# What fits into the socket goes out in one piece, whoever is killed meanwhile. The kernel doubles
# this, and gives no more than twice net.core.wmem_max. (Of 200 workers killed while they sent
# 1.5 MB again and again none cut an answer; with 8 MB half of them did.)
SEND_BUFFER = 2**20

# How long a thread waits for the next request on the connection that it has answered.
KEEPALIVE_WAIT_MS = 20


class BufferedConnection:
    """A connection as far as an answer needs it: what is sent waits for `flush`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.waiting.append(data)

    def flush(self) -> None:
        """Send all that waits, in one call."""
        if self.waiting:
            data = b"".join(self.waiting)
            self.waiting.clear()
            self.connection.sendall(data)


class WholeResponse(wsgi.Response):  # type: ignore[misc]  # gunicorn has no types
    """An answer whose head goes out with the beginning of its body."""

    def __init__(self, request: Request, connection: socket.socket, configuration: Any) -> None:
        super().__init__(request, BufferedConnection(connection), configuration)

    def default_headers(self) -> list[str]:
        """Return the first lines, without the time and a server's name: NGINX sends its own."""
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
    """Threads that are all there from the start; the one that was busy last is the next.

    Started by need, the one for which a container has no room would end the worker with all that
    it has under way, and those that are there would leave none for `/ping`. Taken in turn, as by
    concurrent.futures, each would come to its work with cold caches.

    Args:
        count: how many.

    Raises:
        RuntimeError: there is no room for so many.

    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Work]] = []
        self._waiting: deque[Work] = deque()
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function called in a thread, after those that wait for one."""
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
            del work, future, function, arguments  # an idle thread keeps nothing

    def shutdown(self, *, wait: bool) -> None:
        """Do nothing: they end with the process, which has waited for those that answer."""


class WebWorker(ThreadWorker):  # type: ignore[misc]
    """Answers requests in threads.

    A thread that has answered waits a moment for the next request on its connection. gunicorn's own
    hands every request from the main thread to another and back.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.in_hand = 0  # connections that have a thread, or wait for one

    def get_thread_pool(self) -> ThreadPool:
        """Return the threads that answer; where there is no room for them all, end the worker."""
        try:
            return ThreadPool(self.cfg.threads)
        except RuntimeError:
            self.log.critical(
                "there is no room for the %d threads of a web worker: let the container have more "
                "processes (a limit of pids counts threads)",
                self.cfg.threads,
            )
            time.sleep(1)  # until the next one is tried
            os._exit(1)  # gunicorn would end the others too over a worker that cannot begin

    def enqueue_req(self, connection: Any) -> None:
        self.in_hand += 1
        super().enqueue_req(connection)

    def finish_request(self, connection: Any, outcome: Any) -> None:
        self.in_hand -= 1
        super().finish_request(connection, outcome)

    def handle(self, connection: Any) -> Any:
        """Answer requests; return what is to become of their connection."""
        if not connection.initialized:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            connection.parser = RequestStream(self.cfg, connection.sock, connection.client)
        return super().handle(connection)

    def handle_request(self, request: Request, connection: Any) -> bool:
        """Answer a request and those that follow at once; return whether others may follow."""
        while kept := self.answer(request, connection):
            if not self.another_comes(request, connection):
                break
            request = next(connection.parser)
        return kept

    def another_comes(self, request: Request, connection: Any) -> bool:
        """Wait a moment for the next request, where there are threads to spare."""
        if request.body.unread or not self.alive or 2 * self.in_hand > self.cfg.threads:
            return False
        poll = select.poll()
        poll.register(connection.sock, select.POLLIN)
        return bool(poll.poll(KEEPALIVE_WAIT_MS))

    def answer(self, request: Request, connection: Any) -> bool:
        """Answer a request; return whether another may follow on its connection.

        As gunicorn's own `handle_request`, but for the class of the answer, and without what is not
        used here: a log, hooks, files, an end after so many requests.
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
            self.log.exception("an answer broke off")
            util.close_graceful(connection.sock)
            return False
        return not answer.should_close()

    def close_answer(self, pieces: Any) -> None:
        """Do what is due after an answer; what went wrong before that goes before its faults."""
        try:
            pieces.close()
        except Exception:
            self.log.exception("what is due after an answer failed")
