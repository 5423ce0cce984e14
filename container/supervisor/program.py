"""The supervisor's programs, its policy, and the machine as it needs it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Protocol


@dataclass(frozen=True)
class Look:
    """What a look at a program found.

    Args:
        began: when it began, on the clock of `System.now`.
        fault: what keeps the program from its work; nothing where it does it.

    """

    began: float = -math.inf
    fault: str = "it was not looked at yet"


@dataclass(frozen=True)
class Program:
    """A program to run.

    Args:
        name: for the log.
        command: returns the program and its arguments, at each start.
        environment: all of its environment variables.
        fault: says what keeps it from its work, nothing where it does it; takes a few seconds at
            most. It is called in a thread of its own.
        stop_signal: what asks it to finish its work and end.
        stop_within: seconds that it has for that in its turn; then it is killed.
        instead: the program that is killed then in its place, because it waits for that one, and
            can finish without.
        is_done: says at once, given its process id, whether one that worked, and was asked to end,
            has nothing more to do before it ends; then it is not waited for much longer.
        work: returns what there is to do at a start; where it is other than at the first, that one
            says nothing about how long it takes.
        files: open files that it inherits, by number.
        before_stop: called once before `stop_signal` is sent, or as soon as the end is asked for
            where the program does not run then; its argument is whether it runs. Takes a second at
            most.
        output: the file that takes what it writes; `None` means this process's own.
        clean: removes what it leaves behind.

    """

    name: str
    command: Callable[[], Sequence[str]]
    environment: Mapping[str, str]
    fault: Callable[[], str]
    stop_signal: Signals = signal.SIGTERM
    stop_within: float = math.inf
    instead: str = ""
    is_done: Callable[[int], bool] = lambda _: False
    work: Callable[[], object] = lambda: None
    files: tuple[int, ...] = ()
    before_stop: Callable[[bool], None] = lambda _: None
    output: int | None = None
    clean: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Policy:
    """When enough is enough, in seconds.

    Args:
        start_timeout: from a start until the program must work.
        stop_timeout: from a signal until what is left is killed.
        patience: how long a fault has to stay before a program is restarted.
        restarts: how often each program may be restarted within `window`.

    """

    start_timeout: float
    stop_timeout: float
    restarts: int = 10
    window: float = 600
    patience: float = 10


class System(Protocol):
    """What the supervisor needs of the machine."""

    def spawn(self, program: Program) -> int:
        """Start a program as the leader of a process group; return its process id."""

    def look(self, program: Program) -> Look:
        """Return the newest look at a program that was started."""

    def signal(self, pid: int, number: Signals) -> None:
        """Send a signal to one process; to none where it is gone."""

    def signal_group(self, pid: int, number: Signals) -> None:
        """Send a signal to a leader's whole group; to none where it is gone."""

    def group_is_gone(self, pid: int) -> bool:
        """Whether nothing is left of a leader's group."""

    def is_stopped(self, pid: int) -> bool:
        """Whether a process was stopped by a signal, and not continued since."""

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yield process id and exit code of every child that ended, each once."""

    def wait(self, seconds: float) -> list[Signals]:
        """Return the signals that came, as soon as there are any, at the latest after a time."""

    def now(self) -> float:
        """Return the seconds on a clock that only goes forward."""
