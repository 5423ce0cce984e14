"""One stream for the lines of every program, told apart by the program's name.

Each program writes into a pipe whose both ends stay open here: it can be started anew, and finds
its pipe as it was. What nobody takes out of the stream is dropped, and counted: a log that is stuck
must not stop the programs.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

PIECE = 2**16
LONGEST_LINE = 2**16
PATIENCE_S = 1.0  # for a stream that takes nothing
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
        self._writing = threading.Lock()
        self._stuck = False
        self._lost = 0
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
        except BlockingIOError:
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
        self._tell_losses()

    def _copy(self, program: str, source: int) -> None:
        rest = b""
        while piece := os.read(source, PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._write([self._shown(program, line) for line in lines if line])
        if rest:
            self._write([self._shown(program, rest)])
        os.close(source)

    def _shown(self, program: str, line: bytes) -> bytes:
        if line.startswith(b"{"):
            return line + b"\n"
        if not self.as_json:
            return program.encode() + b": " + line + b"\n"
        return json_line(program, line.decode(errors="replace"))

    def _write(self, lines: list[bytes]) -> None:
        with self._writing:
            for piece in pieces(lines):
                self._stuck = not self._takes(piece)
                if self._stuck:
                    self._lost += piece.count(b"\n")
                else:
                    self._tell_losses()

    def _tell_losses(self) -> None:
        if self._lost:
            lost, self._lost = self._lost, 0
            text = b"%d lines of the log were lost: nobody took them" % lost
            self._takes(self._shown("serve", text))

    def _takes(self, piece: bytes) -> bool:
        """Write a piece where that does not block; say whether it was written."""
        poll = select.poll()
        poll.register(self.out, select.POLLOUT)
        try:
            return bool(poll.poll(0 if self._stuck else 1000 * PATIENCE_S)) and os.write(
                self.out, piece
            ) == len(piece)
        except OSError:
            return False  # nobody reads it any more; that is no reason to stop serving


def pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Yield the lines in pieces that a pipe which is writable takes at once."""
    piece = b""
    for line in lines:
        if len(piece) + len(line) > select.PIPE_BUF:
            if piece:
                yield piece
            piece = b""
        *parts, rest = (
            line[start : start + select.PIPE_BUF] for start in range(0, len(line), select.PIPE_BUF)
        )
        yield from parts
        piece += rest
    if piece:
        yield piece


def json_line(program: str, message: str) -> bytes:
    """Return a line of the log as JSON."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": now.replace("+00:00", "Z"), "program": program, "message": message}
    return json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n"
