"""gunicorn's worker with threads, as it is run here: an answer is sent whole, or not at all.

gunicorn sends the head of an answer, then its body. Killed in between, a worker would leave its
caller with half an answer, for NGINX has sent the head on by then.
"""

from __future__ import annotations

import logging
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.workers.gthread import ThreadWorker

from container.http_requests import Request, Requests

log = logging.getLogger(__name__)

# What fits into the socket goes out in one piece, whoever is killed meanwhile. The kernel doubles
# this, and gives no more than twice net.core.wmem_max. (Of 200 workers killed while they sent
# 1.5 MB again and again none cut an answer; with 8 MB half of them did.)
SEND_BUFFER = 2**20

# How long a thread waits for the next request on the connection that it has answered.
NEXT_MS = 20


class Gathered:
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


class Answer(wsgi.Response):  # type: ignore[misc]  # gunicorn has no types
    """An answer whose head goes out with the beginning of its body."""

    def __init__(self, request: Request, connection: socket.socket, configuration: Any) -> None:
        super().__init__(request, Gathered(connection), configuration)

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


class Threads(ThreadPoolExecutor):
    """Threads that come by need, and do the work of those for which there is no room.

    Where a container may have no more of them, `submit` fails otherwise after it has put the work
    into the queue, and the worker ends with all that it has under way.
    """

    is_told = False

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise
            if not self.is_told:
                self.is_told = True
                log.warning(
                    "there is no room for more than %d of the %d threads of a web worker: let the "
                    "container have more processes (a limit of pids counts threads)",
                    len(self._threads),
                    self._max_workers,
                )


class WebWorker(ThreadWorker):  # type: ignore[misc]
    """Answers requests in threads.

    A thread that has answered waits a moment for the next request on its connection. gunicorn's own
    hands every request from the main thread to another and back.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.in_hand = 0  # connections that have a thread, or wait for one

    def get_thread_pool(self) -> ThreadPoolExecutor:
        return Threads(self.cfg.threads)

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
            connection.parser = Requests(self.cfg, connection.sock, connection.client)
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
        return bool(poll.poll(NEXT_MS))

    def answer(self, request: Request, connection: Any) -> bool:
        """Answer a request; return whether another may follow on its connection.

        As gunicorn's own `handle_request`, but for the class of the answer, and without what is not
        used here: a log, hooks, files, an end after so many requests.
        """
        answer = Answer(request, connection.sock, self.cfg)
        if not self.alive or len(self.keepalived_conns) >= self.max_keepalived:
            answer.force_close()
        try:
            pieces = self.wsgi(request.environ(connection.sock), answer.start_response)
            try:
                for piece in pieces:
                    answer.write(piece)
                answer.close()
            finally:
                pieces.close()
        except OSError:
            raise  # the connection is gone
        except (Exception, SystemExit):
            if not answer.headers_sent:
                raise  # answered with an error
            self.log.exception("an answer broke off")
            util.close_graceful(connection.sock)
            return False
        return not answer.should_close()
