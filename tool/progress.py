"""How far a long step is, on one line of a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tool.sizes import size_text

REFRESH_S = 0.2
SLOW_S = 3.0


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say what is done, if it takes long."""
    timer = threading.Timer(SLOW_S, lambda: sys.stderr.write(f"{what} …\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """Counts the bytes that are done.

    Args:
        what: names the step.
        total: bytes.
        out: where the line is written, if that is a terminal.

    """

    def __init__(self, what: str, total: int, out: TextIO | None = None) -> None:
        self.what, self.total, self.out = what, total, out or sys.stderr
        self.done = 0
        self.shown = 0.0

    def add(self, count: int) -> None:
        """Count bytes that were done, and show it from time to time."""
        self.done += count
        now = time.monotonic()
        if self.out.isatty() and now - self.shown > REFRESH_S:
            self.shown = now
            percent = 100 * self.done // max(self.total, 1)
            self.out.write(f"\r\x1b[K{self.what}: {percent}% of {size_text(self.total)}")
            self.out.flush()

    def close(self) -> None:
        if self.out.isatty():
            self.out.write("\r\x1b[K")
