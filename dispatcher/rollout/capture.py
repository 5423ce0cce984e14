"""Samples requests with what was answered, and has them written in the background (CAPTURE_TO).

In a request's own time only references are kept, in a bounded queue. A thread makes the lines and
writes them; what finds no room in the queue or on the disk is dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flask import Request, Response

from clients.errors import InferenceError
from dispatcher.background import start_rounds
from dispatcher.codecs.metadata import REPLAY
from dispatcher.rollout.capture_files import HOUR_S, CaptureFiles
from dispatcher.rollout.captured_request import HEADERS, MAX_PART, CapturedLines, CapturedRequest
from dispatcher.settings import Settings
from dispatcher.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

MAX_WAITING = 10_000  # requests
MAX_BYTES = 64 * 2**20  # of their bodies and answers
BATCH_S, EXIT_S = 1.0, 5.0
MINUTE_S = 60.0
HINT = "make room there, let this user write there, or set CAPTURE_TO to another place"


@dataclass(eq=False)
class Capture:
    """The sampled requests of a web worker."""

    settings: Settings
    lines: CapturedLines
    files: CaptureFiles
    count: Callable[[str], None]  # one more request, by what became of it
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.shares = self.settings.capture_share
        self.per_minute = math.ceil(self.settings.capture_per_minute / self.settings.workers)
        self._waiting: deque[tuple[CapturedRequest, int]] = deque()
        self._held = 0  # bytes
        self._minute, self._taken = self.clock(), 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._faults = dict[str, tuple[str, float]]()

    def start(self) -> None:
        """Write in a daemon thread from now on."""
        self.flush()  # so that it is logged now where the place cannot be used
        start_rounds(self._go_on, "capture", BATCH_S)
        atexit.register(self.close)

    def begin(self, record: RequestRecord, request: Request) -> Callable[[Response], None] | None:
        """Sample a request before its body is read; return what takes its answer, if any."""
        if not is_sampled(record, max(self.shares.values())) or REPLAY in request.headers:
            return None
        environ = request.environ
        headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
        media_type, query = environ.get("CONTENT_TYPE", ""), environ.get("QUERY_STRING", "")
        captured = CapturedRequest(record, self.put, media_type, query, headers)
        if self.lines.payloads and record.bytes_in <= MAX_PART:
            captured.body, captured.source = [], environ["wsgi.input"]
            environ["wsgi.input"] = captured
        return captured.finish

    def put(self, one: CapturedRequest) -> None:
        """Queue a request whose answer was sent, if the shares and the limit by minute allow it."""
        record, others = one.record, self.shares.get("", 0.0)
        share = max(self.shares.get(name, others) for name in record.models or [""])
        # (What never waited for a slot has asked no model.)
        if not record.entering or not is_sampled(record, share):
            return
        size, now = one.measure(), self.clock()
        with self._lock:
            if now >= self._minute + MINUTE_S:
                self._minute, self._taken = now, 0
            self._taken += 1
            if self._taken > self.per_minute:
                return
            fits = len(self._waiting) < MAX_WAITING and self._held + size <= MAX_BYTES
            if fits:
                self._held += size
                self._waiting.append((one, size))
        if not fits:
            self.count("queue_full")

    def flush(self) -> None:
        """Write what waits; drop and count it where that cannot be done."""
        with self._writing:
            more = True
            while more:
                with self._lock:
                    one, size = self._waiting.popleft() if self._waiting else (None, 0)
                    self._held -= size
                outcome, fault = "written", ""
                try:
                    self.files.prepare()
                    if one:
                        self.files.append(self.lines.make(one, self.files.keep))
                except OSError as error:
                    outcome, fault = "not_written", f"{self.files.place}: {error.strerror}; {HINT}"
                self._note("requests are not captured", fault)
                if more := one is not None:
                    self.count(outcome)

    def tidy(self, until: float = math.inf) -> None:
        """Upload what is complete, or remove what was kept long enough."""
        fault = ""
        try:
            self.files.sweep()
            self.files.upload(until)
        except InferenceError as error:
            fault = f"{error.message}; {error.hint}"
        self._note("captured requests wait for S3", fault)

    def close(self) -> None:
        """Write what waits, before the process ends."""
        self.flush()
        with self._writing:
            self.files.close()
        self.tidy(time.monotonic() + EXIT_S)

    def _note(self, what: str, fault: str) -> None:
        """Log a fault once an hour: on a disk that is nearly full some requests find room."""
        last, at = self._faults.get(what, ("", 0.0))
        if fault and (fault != last or self.clock() > at + HOUR_S):
            log.warning("%s: %s", what, fault)
            self._faults[what] = fault, self.clock()

    def _go_on(self) -> None:
        self.flush()
        self.tidy()


def is_sampled(record: RequestRecord, share: float) -> bool:
    """Whether a share of all requests has this one, by its id."""
    return zlib.crc32(record.request_id.encode()) < share * 2**32
