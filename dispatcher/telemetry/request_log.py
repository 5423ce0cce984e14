"""The record of each request, and its line in the log, in JSON.

A thread of its own writes the lines in batches; those that cannot be written in time are dropped
and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clients.request import Timings
from dispatcher.background import start_rounds
from dispatcher.log_lines import (
    MAX_TEXT,
    find_descriptor,
    json_line,
    level_of_status,
    message_line,
    text_lines,
    timestamp,
    write_all,
)
from dispatcher.rollout.plan import NO_CHOICE, Choice

if TYPE_CHECKING:
    from flask import Response

    from dispatcher.auth.api_keys import ModelList
    from dispatcher.telemetry.traces import RequestTrace

BATCH_S = 0.1
MAX_WAITING = 20_000  # records; some 20 MB
MAX_NAMES = 10  # models of one request
MAX_TRACEBACK = 3000
PROGRAM = "dispatcher"

FIRST_ERROR = 400


@dataclass(slots=True)
class RequestRecord:
    """One request. Of its body only the parameters, of its headers only its id."""

    # When NGINX had all of it, by `time.monotonic()`, as are `began`, `entering` and `answered`.
    since: float
    request_id: str  # its id in the log and the response
    method: str  # GET, POST and so on
    route: str  # the URL rule that its path matched; empty where it matched none
    path: str  # without the query
    bytes_in: int  # of the body, as it arrived
    queue: float = 0.0  # seconds until it left the queue; before that, until a web worker had it
    modelname: str = ""  # the model that it names, once that is read
    key: str = ""  # the name of its API key
    may_ask: ModelList | None = None  # the only models that the key may ask; `None` for all
    limit: str = ""  # of its key, by which it was refused
    models: list[str] = field(default_factory=list)  # the models that it asked
    version: str = ""  # the requested version
    choice: Choice = NO_CHOICE  # what answers it, where something is tried beside the model
    known: bool = False  # whether those models exist, so that the metrics may name them
    status: int = 0  # of the answer
    code: str = ""  # the error's, if it is one
    message: str = ""  # the error's, unless it quotes from the body
    bytes_out: int = 0  # of the body, before NGINX compresses it
    items: int = 0  # how many results the body has, where there may be several
    failed: int = 0  # how many of those are errors
    at: float = 0.0  # when NGINX had all of it, in seconds since 1970
    total: float = 0.0  # seconds until the response was sent
    timings: Timings | None = None  # of the model's client
    s3: float = 0.0  # seconds that it waited for S3
    reported: bool = False  # whether it was counted and logged already
    began: float = 0.0  # when a web worker had it
    entering: float = 0.0  # when it began to wait for a slot; 0 where it did not
    answered: float = 0.0  # when its answer was made, which may be sent as it is made
    trace_id: str = ""  # of its trace, 32 digits; empty where there is none
    trace: RequestTrace | None = None  # to which its phases are added
    parameters: Mapping[str, Any] = field(default_factory=dict)  # as its only model read them
    captured: Callable[[Response], None] | None = None  # takes the answer of one that is captured

    def name(self, model: str) -> None:
        """Add a model to those asked."""
        if model and model not in self.models and len(self.models) < MAX_NAMES:
            self.models.append(model)


class AccessLog:
    """Writes records to a file."""

    def __init__(self, out: int, *, errors_only: bool = False) -> None:
        self.out = out
        self.errors_only = errors_only
        self._waiting: deque[RequestRecord] = deque()
        self._dropped = 0
        self._some = threading.Event()
        self._writing = threading.Lock()

    def start(self) -> None:
        """Write in a daemon thread from now on."""
        start_rounds(self._write_next, "access log")
        atexit.register(self.flush)

    def put(self, record: RequestRecord) -> None:
        if self.errors_only and record.status < FIRST_ERROR and not record.failed:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(record)
        if not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        with self._writing:
            lines = [format_record(self._waiting.popleft()) for _ in range(len(self._waiting))]
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                message = f"{dropped} lines of the log were dropped: they were not written in time"
                lines.append(message_line(PROGRAM, "warning", message, time.time()))
            # Other processes write to the same pipe, which keeps only so much together.
            piece = b""
            for line in lines:
                if len(piece) + len(line) > select.PIPE_BUF:
                    write_all(self.out, piece)
                    piece = b""
                piece += line
            write_all(self.out, piece)

    def _write_next(self) -> None:
        self._some.wait()
        time.sleep(BATCH_S)
        self._some.clear()
        self.flush()


def format_record(record: RequestRecord) -> bytes:
    """Return a record as a line of JSON, short enough for one write to a pipe."""
    # A thread that was given up may still count.
    phases = dict(record.timings.seconds) if record.timings else {}
    line = {
        "time": timestamp(record.at),
        "program": PROGRAM,
        "level": level_of_status(record.status),
        "request_id": record.request_id,
        "trace_id": record.trace_id or None,
        "method": record.method[:MAX_TEXT],
        "route": record.route,
        "path": None if record.route else record.path[:MAX_TEXT],
        "key": record.key or None,
        "model": ",".join(record.models)[:MAX_TEXT] or None,
        "version": record.version[:MAX_TEXT] or None,
        "choice": f"{record.choice.of} {record.choice}".strip() or None,
        "status": record.status,
        "code": record.code or None,
        "message": record.message[:MAX_TEXT] or None,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "items": record.items or None,
        "failed": record.failed if record.items else None,
        "queue_s": round(record.queue, 6),
        "s3_s": round(record.s3, 6) if record.s3 else None,
        **{f"{phase}_s": round(seconds, 6) for phase, seconds in phases.items()},
        "total_s": round(record.total, 6),
    }
    return json_line({name: value for name, value in line.items() if value is not None})


class Lines(logging.Formatter):
    """Formats log messages as lines: one of JSON each, or text."""

    def __init__(self, program: str = PROGRAM, *, as_json: bool) -> None:
        super().__init__()
        self.program = program
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; only the end of a long message."""
        text, level = super().format(record)[-MAX_TRACEBACK:], record.levelname
        if self.as_json:
            where = {"logger": record.name}
            line = message_line(self.program, level.lower(), text, record.created, **where)
        else:
            line = text_lines("gunicorn", f"{level} {record.name}: {text}")
        return line.decode().removesuffix("\n")


def log_handler(lines: Lines) -> logging.Handler:
    """Return what writes messages beside the lines of requests."""
    stream = os.fdopen(find_descriptor(), "w", encoding="utf-8", closefd=False)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(lines)
    return handler
