"""Samples requests with what was answered, and has them written in the background (CAPTURE_TO).

In a request's own time nothing is done but to keep references, in a bounded queue. A thread makes
the lines and writes them; what finds no room in the queue or on the disk is dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flask import Request, Response

from clients.errors import InferenceError
from dispatcher.background import start_rounds
from dispatcher.codecs.metadata import ATTRIBUTES, REPLAY, SESSION, TARGET_MODEL
from dispatcher.rollout.capture_files import CaptureFiles
from dispatcher.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

MAX_WAITING = 10_000  # requests
MAX_BYTES = 64 * 2**20  # of their bodies and answers
MAX_PART = 8 * 2**20  # bytes of one body, or of one answer
MAX_CHUNK = 32  # requests whose lines are written at once
BATCH_S, PAUSE_S, EXIT_S = 0.5, 5.0, 5.0
MINUTE_S = 60.0
HINT = "make room there, let this user write there, or set CAPTURE_TO to another place"
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
# What an answer depends on besides path, query and body, but for keys. By WSGI's names.
HEADERS = {
    f"HTTP_{name.upper().replace('-', '_')}": name
    for name in (
        *("Accept", "Content-Encoding", "Inference-Header-Content-Length", INFERENCE_ID),
        *(ATTRIBUTES, SESSION, TARGET_MODEL),
    )
}


@dataclass(slots=True, eq=False)
class CapturedRequest:
    """A request as it comes, and its answer.

    Where payloads are captured, the request's body is read from it (`wsgi.input`).
    """

    record: RequestRecord
    draw: float  # from 0 to 1; below the share of its model, the request is captured
    put: Callable[[CapturedRequest], None]
    content_type: str
    query: str
    headers: Mapping[str, str]  # of `HEADERS`, by their names
    source: Any = None  # where the body comes from
    body: list[bytes] | None = None  # its pieces; None where it is not captured, or too large
    answer: list[bytes] | None = field(default_factory=list)  # the same of what was answered
    answer_type: str = ""

    def read(self, size: int = -1) -> bytes:
        """Read a piece of the body."""
        piece: bytes = self.source.read(size)
        if self.body is not None:
            self.body.append(piece)
        return piece

    def finish(self, response: Response) -> None:
        """Take the answer, which may be sent as it is made; put both into the queue after it."""
        self.source, self.answer_type = None, response.content_type or ""
        if response.is_sequence:
            self.answer = [*response.iter_encoded()]
        else:
            response.response = self.collect(response.iter_encoded())
        response.call_on_close(partial(self.put, self))

    def collect(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces of an answer, and keep them until they are too large."""
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_PART:
                self.answer = None
            if self.answer is not None:
                self.answer.append(piece)
            yield piece

    def measure(self) -> int:
        """Return how many bytes it keeps; leave out an answer that is too large."""
        if sum(map(len, self.answer or ())) > MAX_PART:
            self.answer = None
        return sum(len(piece) for part in (self.body, self.answer) for piece in part or ())


@dataclass(eq=False)
class Capture:
    """The sampled requests of a web worker."""

    shares: Mapping[str, float]  # by model; that of all others by the empty name
    per_minute: int  # how many requests at most
    payloads: bool  # whether bodies are captured too
    # Makes the line of a request; keeps contents beside it by the function that is given.
    make_line: Callable[[CapturedRequest, Callable[[bytes], str]], bytes]
    files: CaptureFiles
    count: Callable[[str], None]  # one more request, by what became of it
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._most = max(self.shares.values())
        self._waiting: deque[tuple[CapturedRequest, int]] = deque()
        self._held = 0  # bytes
        self._minute, self._taken = self.clock(), 0
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._some = threading.Event()
        self._faults = dict[str, str]()

    def start(self) -> None:
        """Write in a daemon thread from now on."""
        self.flush()  # so that it is logged now where the place cannot be used
        start_rounds(self._go_on, "capture", BATCH_S)
        atexit.register(self.close)

    def begin(self, record: RequestRecord, request: Request) -> Callable[[Response], None] | None:
        """Sample a request before its body is read; return what takes its answer, if any."""
        draw = zlib.crc32(record.request_id.encode()) / 2**32
        if draw >= self._most or REPLAY in request.headers:
            return None
        environ = request.environ
        headers = {name: environ[key] for key, name in HEADERS.items() if key in environ}
        media_type, query = environ.get("CONTENT_TYPE", ""), environ.get("QUERY_STRING", "")
        captured = CapturedRequest(record, draw, self.put, media_type, query, headers)
        if self.payloads and record.bytes_in <= MAX_PART:
            captured.body, captured.source = [], environ["wsgi.input"]
            environ["wsgi.input"] = captured
        return captured.finish

    def put(self, one: CapturedRequest) -> None:
        """Have a request written whose answer was sent, if its model and the time allow."""
        record, others = one.record, self.shares.get("", 0.0)
        share = max(self.shares.get(name, others) for name in record.models or [""])
        # (What never waited for a slot has asked no model.)
        if not record.entering or one.draw >= share:
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
        elif not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        """Write what waits; drop and count it where that cannot be done."""
        with self._writing:
            chunk, ends = list[CapturedRequest](), False
            while not ends:
                outcome, fault = "written", ""
                try:
                    self.files.prepare()
                    lines = [self.make_line(one, self.files.keep) for one in chunk]
                    self.files.append(b"".join(lines))
                except OSError as error:
                    outcome, fault = "not_written", f"{self.files.place}: {error.strerror}; {HINT}"
                self._note("requests are not captured", fault)
                for _ in chunk:
                    self.count(outcome)
                chunk = self._take_some()
                ends = not chunk

    def _take_some(self) -> list[CapturedRequest]:
        with self._lock:
            count = min(len(self._waiting), MAX_CHUNK)
            chunk = [self._waiting.popleft() for _ in range(count)]
            self._held -= sum(size for _, size in chunk)
        return [one for one, _ in chunk]

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
        """Log a fault once."""
        if fault and fault != self._faults.get(what):
            log.warning("%s: %s", what, fault)
        self._faults[what] = fault

    def _go_on(self) -> None:
        self._some.wait(PAUSE_S)
        self._some.clear()
        self.flush()
        self.tidy()
