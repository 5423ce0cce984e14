"""A program as the supervisor knows it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe of a program.

    Args:
        began: when the probe began, on the clock of `Machine.now`.
        fault: what is wrong with the program; empty where it works.

    """

    began: float = -math.inf
    fault: str = "it was not probed yet"


@dataclass(frozen=True)
class Program:
    """A program to run.

    Args:
        command: returns the program and its arguments, at each start.
        fault: probes it; returns what is wrong, or an empty text where it works. It takes a few
            seconds at most, and is called in a thread of its own.
        stop_within: seconds that it has for that; then it is killed.
        instead: the program that is killed in its place then, because it waits for that program.
        is_done: takes its process id after `stop_signal` was sent, and returns at once whether its
            work is finished; it is killed soon afterwards where it does not end.
        files: numbers of open files that it inherits.
        clean: removes what its process leaves behind.

    """

    name: str
    command: Callable[[], Sequence[str]]
    environment: Mapping[str, str]
    fault: Callable[[], str]
    stop_signal: Signals = signal.SIGTERM
    stop_within: float = math.inf
    instead: str = ""
    is_done: Callable[[int], bool] = lambda _: False
    files: tuple[int, ...] = ()
    output: int | None = None
    clean: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Policy:
    """Deadlines and limits; times are in seconds.

    Args:
        patience: how long a fault has to last before a program is restarted.

    """

    start_timeout: float
    stop_timeout: float
    restarts: int = 10
    window: float = 600
    patience: float = 10
