"""Signals that end a command in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does, with all that it started."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    before = {one: signal.getsignal(one) for one in numbers}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; for the main thread.

    A library that catches ImportError swallows it during the import of a C extension, of which
    pybind11 makes an ImportError.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
