"""What became of one program since the start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from container.supervisor.program import Program

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 8.0


class State(Enum):
    """What a program does; the values are what the web workers are told."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass
class Lifecycle:
    """What became of one program so far.

    Args:
        since: when it came into its state.
        pid: its process, or what was it; 0 before the first start.
        alive: whether that process runs.
        faulty_since: when the fault was found that stays since then.
        done_since: when it was found to have done all that it has to do before it ends.
        starts: how often it was started.
        worked: whether it ever did its work.
        took: seconds from its first start until it did.
        work: what it had to do at that start.
        as_first: whether it has the same to do now.
        restarts: when it was last restarted, as far as that still counts.
        reason: why it is not running.

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
    took: float = 0.0
    work: object = None
    as_first: bool = True
    restarts: list[float] = field(default_factory=list)
    reason: str = ""

    def enter(self, state: State, now: float) -> None:
        self.state, self.since, self.faulty_since = state, now, None

    def delay(self) -> float:
        """Return the seconds before the next start."""
        if not self.restarts:
            return 0.0
        return float(min(FIRST_DELAY_S * 2 ** (len(self.restarts) - 1), LONGEST_DELAY_S))
