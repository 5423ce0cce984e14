"""A line of JSON per request, written beside the requests' way: a batch at a time, by one thread.

What the log does not take in time is dropped, and counted.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from dispatcher.observability.record import Record

log = logging.getLogger(__name__)

BATCH_S = 0.1
MOST_WAITING = 20_000  # records; some 20 MB
LONGEST_TEXT = 200
LONGEST_TRACEBACK = 3000
PROGRAM = "dispatcher"

FIRST_ERROR = 400


class AccessLog:
    """Writes records to a file.

    Args:
        out: the file.
        errors_only: whether those that were answered well are left out.

    """

    def __init__(self, out: int, *, errors_only: bool = False) -> None:
        self.out = out
        self.errors_only = errors_only
        self._waiting: deque[Record] = deque()
        self._lost = 0
        self._some = threading.Event()
        self._writing = threading.Lock()

    def start(self) -> None:
        """Write from now on, in a thread that does not keep the process alive."""
        threading.Thread(target=self._go_on, name="access log", daemon=True).start()
        atexit.register(self.flush)

    def put(self, record: Record) -> None:
        """Take a record that is complete."""
        if self.errors_only and record.status < FIRST_ERROR and not record.failed:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append(record)
        if not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        """Write what waits."""
        with self._writing:
            lines = [line_of(self._waiting.popleft()) for _ in range(len(self._waiting))]
            if self._lost:
                lost, self._lost = self._lost, 0
                message = f"{lost} lines of the log were lost: nobody took them"
                lines.append(encoded({"program": PROGRAM, "message": message}))
            # Others write into the same pipe: only so much at once stays together.
            piece = b""
            for line in lines:
                if len(piece) + len(line) > select.PIPE_BUF:
                    self._write(piece)
                    piece = b""
                piece += line
            self._write(piece)

    def _write(self, piece: bytes) -> None:
        try:
            while piece:
                piece = piece[os.write(self.out, piece) :]
        except OSError:
            pass  # nobody reads the log any more; that is no reason to stop serving

    def _go_on(self) -> None:
        while True:
            self._some.wait()
            time.sleep(BATCH_S)
            self._some.clear()
            try:
                self.flush()
            except Exception:
                log.exception("some lines of the log could not be written")


def line_of(record: Record) -> bytes:
    """Return a record as a line of JSON, shorter than a pipe takes at once."""
    line: dict[str, Any] = {
        "time": moment(record.at),
        "program": PROGRAM,
        "request_id": record.request_id,
        "method": record.method[:LONGEST_TEXT],
        "route": record.route,
    }
    if not record.route:
        line["path"] = record.path[:LONGEST_TEXT]
    if record.key:
        line["key"] = record.key
    if record.models:
        line["model"] = ",".join(record.models)[:LONGEST_TEXT]
    if record.version:
        line["version"] = record.version[:LONGEST_TEXT]
    line["status"] = record.status
    if record.code:
        line["code"] = record.code
    if record.message:
        line["message"] = record.message[:LONGEST_TEXT]
    line["bytes_in"] = record.bytes_in
    line["bytes_out"] = record.bytes_out
    if record.items:
        line["items"] = record.items
        line["failed"] = record.failed
    line["queue_s"] = round(record.queue, 6)
    if record.timings:
        line["decode_s"] = round(record.timings.decode, 6)
        line["inference_s"] = round(record.timings.inference, 6)
        line["postprocess_s"] = round(record.timings.postprocess, 6)
    line["total_s"] = round(record.total, 6)
    return encoded(line)


def moment(seconds: float) -> str:
    """Return seconds since 1970 as the log has them."""
    at = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """Makes one JSON object of what else a web worker logs, with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; of a long text the end."""
        line = {
            "time": moment(record.created),
            "program": PROGRAM,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": super().format(record)[-LONGEST_TRACEBACK:],
        }
        return json.dumps(line)


def encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"
