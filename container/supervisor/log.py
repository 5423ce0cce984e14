"""One stream for the lines of every program, each marked with the program's name.

Each program writes into a pipe. Both ends of the pipe stay open in this process, so a restarted
program finds its pipe as it was. Lines wait in memory until the reader of the stream takes them.
Lines beyond `MOST_WAITING` are dropped and counted: a slow or stuck reader must not stop the
programs, least of all NGINX, which answers no request until its line is written.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from dispatcher.log_lines import message_line, text_lines, write_all

READ_BYTES = 2**16
LONGEST_LINE = 2**16
MOST_WAITING = 2**22  # bytes; some ten thousand lines
END_S = 2.0

INFO, WARNING, ERROR = "info", "warning", "error"

# The programs' own marks: Triton's are glog's, gunicorn's and a web worker's those of `logging`.
MARK = re.compile(
    rb"([IWEF])\d{4} \d"  # I0131 12:00:00.000000 77 server.cc:674]
    rb"|(?:\d{4}/\d\d/\d\d [\d:]{8}|nginx:) \[(\w+)\]"  # 2026/01/31 12:00:00 [warn] 77#77:
    rb"|\[\d{4}-\d\d-\d\d [^]]*\] \[\d+\] \[(\w+)\]"  # [2026-01-31 12:00:00 +0000] [77] [INFO]
    rb"|(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: "  # WARNING dispatcher.app:
)
# What is logged as a warning or an error, and is expected: folders beside a model's versions, a
# machine without a GPU, requests before gunicorn's first start, NGINX as root without capabilities.
EXPECTED = re.compile(
    rb"ignore version directory"
    rb"|CudaDriverHelper has not been initialized"
    rb"|connect\(\) to unix:\S+ failed \(2: No such file or directory\)"
    rb"|initgroups\(root, 0\) failed"
)
LEVELS = {
    **dict.fromkeys((b"i", b"info", b"notice"), INFO),
    **dict.fromkeys((b"w", b"warn", b"warning"), WARNING),
    **dict.fromkeys((b"e", b"error"), ERROR),
    **dict.fromkeys((b"f", b"crit", b"alert", b"emerg", b"critical"), "critical"),
    b"debug": "debug",
}

Finish = Callable[[bytes], bytes | None]


class Say(Protocol):
    """Writes a line of this program's own to the log."""

    def __call__(self, line: str, level: str = INFO, /) -> None:
        """Write `line`, as one of `level`."""


class Log:
    """Copies what the programs write to one file, line by line.

    A line gets the program's name before it, or becomes a JSON object with its level.
    """

    def __init__(self, out: int, *, as_json: bool) -> None:
        self.out = out
        self.as_json = as_json
        self._sinks: list[int] = []
        self._threads: list[threading.Thread] = []
        self._waiting: list[bytes] = []
        self._size = 0
        self._lost = 0
        self._ended = False
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def sink(self, program: str, finish: Finish | None = None) -> int:
        """Return the end of a pipe into which a program may write.

        `finish` takes each line that is not empty, and returns what is written of it; `None` where
        it is a text like any other.
        """
        source, sink = os.pipe()
        copied = (program, source, finish)
        thread = threading.Thread(target=self._copy, args=copied, daemon=True)
        self._sinks.append(sink)
        self._threads.append(thread)
        thread.start()
        return sink

    def finished(self) -> int:
        """Return the end of a pipe for lines that stay as they are."""
        return self.sink("finished lines", lambda line: line + b"\n")

    def say(self, line: str, level: str = INFO, /) -> None:
        """Write a line of this program's own, without waiting for the reader."""
        self._put([self._text("serve", part.encode(), level) for part in line.splitlines()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Copy what is left; give a process that still holds a pipe `END_S` at most."""
        for sink in self._sinks:
            os.close(sink)
        for thread in self._threads:
            thread.join(END_S)
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._writer.join(END_S)

    def _copy(self, program: str, source: int, finish: Finish | None) -> None:
        level, rest, ended = INFO, b"", False
        while not ended:
            ended = not (read := os.read(source, READ_BYTES))
            *lines, rest = (rest + read).split(b"\n")
            if ended or len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            out = []
            for line in filter(None, lines):
                finished = finish(line) if finish else None
                if finished is None:
                    calm = mark_calm(line)
                    level = level_of(calm, level)
                    finished = self._text(program, calm, level)
                if finished:
                    out.append(finished)
            self._put(out)
        os.close(source)

    def _text(self, program: str, line: bytes, level: str) -> bytes:
        text = line.decode(errors="replace")
        if self.as_json:
            return message_line(program, level, text, time.time())
        return text_lines(program, text)

    def _put(self, lines: list[bytes]) -> None:
        """Queue lines for the writer, as far as there is room for them."""
        with self._changed:
            for line in lines:
                if self._size + len(line) > MOST_WAITING:
                    self._lost += 1
                else:
                    self._waiting.append(line)
                    self._size += len(line)
            self._changed.notify()

    def _write(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                lines, self._waiting, self._size = self._waiting, [], 0
                lost, self._lost, ended = self._lost, 0, self._ended
            if lost:
                text = b"%d lines of the log were dropped: they were not read in time" % lost
                lines.append(self._text("serve", text, WARNING))
            if not write_all(self.out, b"".join(lines)):
                with self._changed:
                    self._lost += lost + len(lines)


def mark_calm(line: bytes) -> bytes:
    """Mark a line as information where it only looks like a warning or an error."""
    if not EXPECTED.search(line):
        return line
    mark = rb"^[WE](?=\d{4} )|(?<=\[)(?:warn|error|crit|alert|emerg)(?=\])"
    return re.sub(mark, lambda found: b"I" if len(found[0]) == 1 else b"info", line, count=1)


def level_of(line: bytes, before: str) -> str:
    """Return the level of a line.

    An indented line continues the one before it, whose level is `before`.
    """
    if found := MARK.match(line):
        return LEVELS.get(found[found.lastindex or 0].lower(), INFO)
    if line.startswith(b"Traceback "):
        return ERROR
    return before if line[:1].isspace() else INFO
