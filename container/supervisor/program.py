"""A program as the supervisor knows it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe of a program."""

    began: float = -math.inf  # on the clock of `Machine.now`
    fault: str = "it was not probed yet"  # what is wrong; empty where it works


@dataclass(frozen=True)
class Program:
    """A program to run.

    `fault` probes it, in a thread of its own and for a few seconds at most, and returns what is
    wrong. `is_done` takes its process id after `stop_signal` was sent, and returns at once whether
    its work is finished: it is killed soon afterwards where it does not end.
    """

    name: str
    command: Callable[[], Sequence[str]]  # with arguments, called at each start
    environment: Mapping[str, str]
    fault: Callable[[], str]
    stop_signal: Signals = signal.SIGTERM
    stop_within: float = math.inf  # seconds; then it is killed
    instead: str = ""  # the program that is killed in its place then, because it waits for that one
    is_done: Callable[[int], bool] = lambda _: False
    files: tuple[int, ...] = ()  # open ones that it inherits
    output: int | None = None
    clean: Callable[[], None] = lambda: None  # removes what its process leaves behind


@dataclass(frozen=True)
class Policy:
    """Deadlines and limits; times are in seconds."""

    start_timeout: float
    stop_timeout: float
    restarts: int = 10
    window: float = 600
    patience: float = 10  # how long a fault lasts before a program is restarted
