"""Answers callers whose model's client hangs, and replaces the web worker.

A thread cannot be ended from outside. So another thread answers its caller, and its slot stays
taken. A worker in which hanging calls take half of all slots is replaced.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import FrameType

from clients.images.pictures import room
from dispatcher.background import start_rounds
from dispatcher.codecs.error_responses import (
    SERVICE_HEADERS,
    SERVICE_STATUS,
    error_body,
    error_text,
    for_hosting_service,
    hosting_service_error,
)
from dispatcher.errors import status_and_code, time_used_up
from dispatcher.execution.admission import Admission
from dispatcher.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

CHECK_S = 0.1
IDLE_S = 1.0  # after the last call that returned, so that its response can be sent
GRACE_SHARE = 0.04  # of the time limit; fits between the limits of a client and of NGINX
MAX_GRACE_S = 1.0


def grace_period(timeout: float) -> float:
    """Return how many seconds after its deadline a client may still answer by itself."""
    return min(MAX_GRACE_S, timeout * GRACE_SHARE)


@dataclass
class Watchdog:
    """Watches the slots of one worker."""

    admission: Admission  # the slots
    timeout: float  # seconds that a call may take at most, whatever its caller wants
    replace: Callable[[], None]  # asks for a new worker in the place of this one
    clock: Callable[[], float] = time.monotonic  # a time in seconds that only goes forward
    # Ends this process, once it is to end and only hanging calls are left in it.
    end: Callable[[], None] = lambda: os._exit(0)
    # Takes the saturation of this worker (`Slots.saturation`) at each check.
    note: Callable[[float], None] = lambda _: None
    replacing: bool = False
    leaving: bool = False
    busy_at: float = 0.0

    def start(self) -> None:
        """Check periodically, in a daemon thread.

        Must be called in the main thread: it handles the signal with which gunicorn ends a worker.
        """
        given = signal.getsignal(signal.SIGTERM)

        def leave(number: int, frame: FrameType | None) -> None:
            self.leaving = True
            if callable(given):
                given(number, frame)

        signal.signal(signal.SIGTERM, leave)
        start_rounds(self.look, "watch", CHECK_S)

    def look(self) -> None:
        """Answer callers whose time is used up, and count calls that hang."""
        calls, series = self.admission.calls, self.admission.series
        self.note(calls.saturation())
        now = self.clock()
        over = grace_period(self.timeout)
        series.answer_overdue(now - over, now)
        calls.answer_overdue(now - over, now)
        for slot in calls.find_hanging(now - self.timeout - over, room.entered):
            log.error(
                "a call of the client of %r hangs; its thread is at\n%s",
                slot.model,
                stack_of(slot.thread),
            )
        hanging = sum(slot.hanging for slot in list(calls.running))
        if not hanging or len(calls.running) > hanging or series.running:
            self.busy_at = now
        elif self.leaving and now > self.busy_at + IDLE_S:
            # gunicorn and Python would wait for the hanging threads, which never end.
            self.end()
        if hanging * 2 >= calls.total and not self.replacing:
            self.replacing = True
            log.error(
                "half of this worker's slots are taken by hanging calls: replacing the worker"
            )
            self.replace()


def stack_of(thread: int) -> str:
    """Return the end of a thread's stack, formatted as a traceback."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  documented
    return "".join(traceback.format_stack(frame)[-8:]) if frame else "an unknown place"


def replace_worker() -> None:
    """Ask gunicorn for new workers; the current ones end when they have answered.

    Without gunicorn (a handler in AWS Lambda) this process ends, for the platform starts another.
    """
    if "SERVER_SOFTWARE" not in os.environ:  # which gunicorn sets
        os._exit(1)
    os.kill(os.getppid(), signal.SIGHUP)


def send_timeout(connection: socket.socket, record: RequestRecord, modelname: str) -> None:
    """Answer a caller in the place of another thread; close the connection.

    What the thread writes later is discarded.
    """
    error = time_used_up()
    status, code = status_and_code(error)
    body = error_body(record, code, error.message, error.hint, modelname)
    text = error_text(record, status, body)
    headers = {"Content-Type": "application/json", "X-Request-Id": record.request_id}
    if for_hosting_service(record):
        text = hosting_service_error(status, text)
        status = SERVICE_STATUS
        headers |= SERVICE_HEADERS
    content = text.encode()
    headers |= {"Content-Length": str(len(content)), "Connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *map(": ".join, headers.items())]
    head = "\r\n".join(lines) + "\r\n\r\n"
    try:
        connection.send(head.encode() + content, socket.MSG_DONTWAIT)
    except OSError:
        pass  # the caller is gone
    shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """Close a connection, even while another thread writes to it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # ended already
