"""What the terminal shows while an endpoint runs."""

from __future__ import annotations

import threading
import time
from typing import TextIO


class Lines:
    """Writes lines with the time, of several threads.

    A write raises nothing: `gone` is the error after which no more is written, such as that of a
    pipe that nobody reads.

    Args:
        out: where it writes.

    """

    def __init__(self, out: TextIO) -> None:
        self.out, self.guard = out, threading.Lock()
        self.gone: OSError | None = None

    def __call__(self, text: str) -> None:
        now = time.strftime("%H:%M:%S")
        with self.guard:
            if self.gone is None:
                try:
                    self.out.writelines(f"{now} {line}\n" for line in text.splitlines() or [""])
                    self.out.flush()
                except OSError as error:
                    self.gone = error

    def about(self, part: str, text: str) -> None:
        """Write about a part, such as a variant."""
        self(f"{part} {text}")
