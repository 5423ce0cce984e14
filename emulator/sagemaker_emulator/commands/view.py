"""What the terminal shows while an endpoint runs: lines, and below them its state."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from typing import TextIO

CLEAR = "\r\x1b[K"


class View:
    """Writes lines; on a terminal it keeps a line with the state below them.

    Threads write too, so a write raises nothing: `gone` is the error after which no more is
    written, such as that of a pipe that nobody reads.

    Args:
        out: where it writes.
        state: returns that line.

    """

    def __init__(self, out: TextIO, state: Callable[[], str] = lambda: "") -> None:
        self.out, self.state = out, state
        self.live = out.isatty()
        self.guard = threading.Lock()
        self.gone: OSError | None = None

    def say(self, text: str) -> None:
        """Write a line with the time."""
        lines = "".join(
            f"{time.strftime('%H:%M:%S')} {line}\n" for line in text.splitlines() or [""]
        )
        with self.guard:
            self.write(f"{CLEAR}{lines}{self.bottom()}" if self.live else lines)

    def about(self, name: str) -> Callable[[str], None]:
        """Return what writes lines about a part, such as a variant."""
        return lambda text: self.say(f"{name}: {text}")

    def log(self, name: str) -> Callable[[str], None]:
        """Return what writes the lines of a container."""
        return lambda line: self.say(f"{name} | {line}")

    def refresh(self) -> None:
        """Write the state once more, on a terminal."""
        if self.live:
            with self.guard:
                self.write(f"{CLEAR}{self.bottom()}")

    def close(self) -> None:
        if self.live:
            self.write(CLEAR)

    def write(self, text: str) -> None:
        """Write, unless that has failed before."""
        if self.gone is None:
            try:
                self.out.write(text)
                self.out.flush()
            except OSError as error:
                self.gone = error

    def bottom(self) -> str:
        width = shutil.get_terminal_size().columns - 1
        return self.state()[:width]
