"""Keeps a client that does not come back from keeping its caller, or the whole worker.

A thread cannot be ended from outside. So its caller is answered in its place, its turn stays taken,
further calls of its model are refused once several hang, and a worker in which half of all turns
are lost is replaced by a fresh one.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import FrameType

from clients.errors import DeadlineExceeded
from clients.images.pictures import room
from dispatcher.codecs.json_encoding import dumps
from dispatcher.errors import (
    ANSWERS,
    SERVICE_HEADERS,
    SERVICE_PREFIX,
    SERVICE_STATUS,
    hosting_service_error,
)
from dispatcher.execution.admission import TIME_USED_UP, TIME_USED_UP_HINT, Admission
from dispatcher.observability.record import RequestRecord

log = logging.getLogger(__name__)

LOOK_S = 0.1
IDLE_S = 1.0  # after the last call that came back: its answer is sent meanwhile
GRACE_SHARE = 0.04  # of the time limit: between that of a client and that of NGINX
MAX_GRACE_S = 1.0


def grace_period(timeout: float) -> float:
    """Return the seconds beyond its deadline that a client may take to say so itself."""
    return min(MAX_GRACE_S, timeout * GRACE_SHARE)


@dataclass
class Watchdog:
    """Looks after the turns of one worker.

    Args:
        admission: whose turns.
        timeout: seconds that a call may take at most, whatever its caller wants.
        replace: asks for a fresh worker in the place of this one.
        end: ends this process, when it is to end and nothing but lost calls is left in it.

    """

    admission: Admission
    timeout: float
    replace: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    end: Callable[[], None] = lambda: os._exit(0)
    replacing: bool = False
    leaving: bool = False
    busy_at: float = 0.0

    def start(self) -> None:
        """Look again and again, in a thread that does not keep the process alive.

        Called in the main thread: it takes note of the signal with which gunicorn ends a worker.
        """
        given = signal.getsignal(signal.SIGTERM)

        def leave(number: int, frame: FrameType | None) -> None:
            self.leaving = True
            if callable(given):
                given(number, frame)

        signal.signal(signal.SIGTERM, leave)
        threading.Thread(target=self._go_on, name="watch", daemon=True).start()

    def _go_on(self) -> None:
        while True:
            time.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                log.exception("a look at the turns of this worker failed")

    def look(self) -> None:
        """Answer callers whose time is over, and count calls that do not come back."""
        calls, jobs = self.admission.calls, self.admission.jobs
        now = self.clock()
        over = grace_period(self.timeout)
        jobs.answer_overdue(now - over)
        calls.answer_overdue(now - over)
        for slot in calls.find_hanging(now - self.timeout - over, room.entered):
            log.error(
                "a call of the client of %r hangs; its thread is at\n%s",
                slot.model,
                stack_of(slot.thread),
            )
        hanging = sum(calls.hanging.values())
        if not hanging or len(calls.running) > hanging or jobs.running:
            self.busy_at = now
        elif self.leaving and now > self.busy_at + IDLE_S:
            # gunicorn and Python would wait for the lost threads, which never end.
            self.end()
        if hanging * 2 >= calls.total and not self.replacing:
            self.replacing = True
            log.error("half of this worker's turns are lost to calls that hang: it is replaced")
            self.replace()


def stack_of(thread: int) -> str:
    """Return the end of a thread's stack, as a traceback has it."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  the documented way
    return "".join(traceback.format_stack(frame)[-8:]) if frame else "an unknown place"


def replace_worker() -> None:
    """Ask gunicorn for fresh workers; the present ones end when they have answered."""
    os.kill(os.getppid(), signal.SIGHUP)


def send_timeout(connection: socket.socket, record: RequestRecord, modelname: str) -> None:
    """Answer a caller in the place of the thread that has the connection, and end that.

    What the thread writes later goes nowhere.

    Args:
        connection: the caller's.
        record: of the request.
        modelname: the model that does not answer.

    """
    status, code = ANSWERS[DeadlineExceeded]
    error = {
        "code": code,
        "message": TIME_USED_UP,
        "hint": TIME_USED_UP_HINT,
        "modelname": modelname[:200],
    }
    text = dumps({"error": {**error, "request_id": record.request_id}})
    headers = {"Content-Type": "application/json", "X-Request-Id": record.request_id}
    if record.path.startswith(SERVICE_PREFIX):
        text = hosting_service_error(status, text)
        status = SERVICE_STATUS
        headers |= SERVICE_HEADERS
    body = text.encode()
    headers |= {"Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *map(": ".join, headers.items())]
    head = "\r\n".join(lines) + "\r\n\r\n"
    try:
        connection.send(head.encode() + body, socket.MSG_DONTWAIT)
    except OSError:
        pass  # the caller is gone
    shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """End a connection, whoever is writing to it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # ended already
