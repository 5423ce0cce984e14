"""The lifecycle of one program: its state, its process and its restarts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from container.supervisor.program import Program

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 8.0


class State(Enum):
    """The state of a program; the values are those of the status file."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass
class Lifecycle:
    """The lifecycle of one program so far; times are those of `System.now`.

    Args:
        faulty_since: when the present fault was found; None without one.
        done_since: when its work was found to be finished, after it was asked to end.

    """

    program: Program
    state: State = State.WAITING
    since: float = -math.inf
    pid: int = 0
    alive: bool = False
    faulty_since: float | None = None
    done_since: float | None = None
    starts: int = 0
    worked: bool = False
    restarts: list[float] = field(default_factory=list)
    reason: str = ""

    def enter(self, state: State, now: float) -> None:
        self.state, self.since, self.faulty_since = state, now, None

    def delay(self) -> float:
        """Return the seconds before the next start."""
        if not self.restarts:
            return 0.0
        return float(min(FIRST_DELAY_S * 2 ** (len(self.restarts) - 1), LONGEST_DELAY_S))
