"""The signals that end the container, and what processes end with."""

from __future__ import annotations

import signal
import sys
from signal import Signals

# SIGHUP: the terminal is gone. SIGQUIT: what many images have as Docker's STOPSIGNAL.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def end_at_once() -> None:
    """End with exit code 0 at any of them: nothing was started yet, so there is nothing to finish.

    Without a handler the first process of a container does not hear of them at all.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))


def exit_code_for(code: int) -> int:
    """Return the exit code as a shell has it; signals are negative, as `subprocess` has them."""
    return code if code >= 0 else 128 - code


def described(code: int) -> str:
    """Return an exit code in words; signals are negative, as `subprocess` has them."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return Signals(-code).name
    except ValueError:  # most of the real-time ones have no name
        return f"signal {-code}"
