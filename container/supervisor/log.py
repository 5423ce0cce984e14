"""One stream for the lines of every program, each with the program's name.

Each program writes into a pipe, whose two ends stay open here for its next start. Lines from the
pipes wait in memory until the stream takes them. Lines for which there is no room are dropped and
counted: a slow or stuck log must not stop the programs, least of all NGINX, which answers no
request while it waits for its line to be written.
"""

from __future__ import annotations

import json
import os
import select
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

PIECE = 2**16
LONGEST_LINE = 2**16
MOST_WAITING = 2**22  # bytes; some ten thousand lines
END_S = 2.0


class Log:
    """Copies what the programs write to one file, line by line.

    A line that is a JSON object stays as it is. Any other gets the program's name before it, or
    becomes a JSON object.

    Args:
        out: the file that takes all lines.
        as_json: whether every line is to be a JSON object.

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
        self._news = threading.Condition()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()
        self._own = self.sink("serve")
        os.set_blocking(self._own, False)

    def sink(self, program: str) -> int:
        """Return the end of a pipe into which a program may write."""
        source, sink = os.pipe()
        thread = threading.Thread(
            target=self._copy, args=(program, source), name=f"log of {program}", daemon=True
        )
        self._sinks.append(sink)
        self._threads.append(thread)
        thread.start()
        return sink

    def say(self, line: str) -> None:
        """Write a line of this program's own; never wait for it."""
        try:
            os.write(self._own, f"{line}\n".encode())
        except OSError:  # there is no room in the pipe, or it is closed: this was the end
            with self._news:
                self._lost += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Copy what is left; a process that was left behind is not waited for."""
        for sink in self._sinks:
            os.close(sink)
        for thread in self._threads:
            thread.join(END_S)
        with self._news:
            self._ended = True
            self._news.notify()
        self._writer.join(END_S)

    def _copy(self, program: str, source: int) -> None:
        rest = b""
        while piece := os.read(source, PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._put([self._shown(program, line) for line in lines if line])
        if rest:
            self._put([self._shown(program, rest)])
        os.close(source)

    def _shown(self, program: str, line: bytes) -> bytes:
        if is_object(line):
            return line + b"\n"
        if not self.as_json:
            return program.encode() + b": " + line + b"\n"
        return json_line(program, line.decode(errors="replace"))

    def _put(self, lines: list[bytes]) -> None:
        """Let lines wait to be written, as far as there is room for them."""
        with self._news:
            for line in lines:
                if self._size + len(line) > MOST_WAITING:
                    self._lost += 1
                else:
                    self._waiting.append(line)
                    self._size += len(line)
            self._news.notify()

    def _write(self) -> None:
        ended = False
        while not ended:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._ended)
                lines, self._waiting, self._size = self._waiting, [], 0
                lost, self._lost, ended = self._lost, 0, self._ended
            note = b"%d lines of the log were lost: nobody took them in time" % lost
            if not self._takes(b"".join(lines + [self._shown("serve", note)] * bool(lost))):
                with self._news:
                    self._lost += lost + len(lines)

    def _takes(self, text: bytes) -> bool:
        """Write a text, however long that takes; return whether the stream can be written to."""
        while text:
            try:
                text = text[os.write(self.out, text) :]
            except BlockingIOError:  # another program has made the stream so
                select.select([], [self.out], [])
            except OSError:
                return False  # that is no reason to stop serving
        return True


def is_object(line: bytes) -> bool:
    """Whether a line is a JSON object, and does not merely begin as one, as a dict printed does."""
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def json_line(program: str, message: str) -> bytes:
    """Return a line of the log as JSON."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": now.replace("+00:00", "Z"), "program": program, "message": message}
    return json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"
