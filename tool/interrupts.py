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
