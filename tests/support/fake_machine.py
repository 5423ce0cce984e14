"""A machine whose history is written beforehand, for the supervisor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from signal import Signals
from typing import Any

from container.supervisor.log import INFO
from container.supervisor.program import Policy, ProbeResult, Program
from container.supervisor.supervisor import Supervisor

KILL, QUIT, TERM, INT = Signals.SIGKILL, Signals.SIGQUIT, Signals.SIGTERM, Signals.SIGINT
CONT = Signals.SIGCONT


@dataclass
class Script:
    """A machine on which time passes by a second a wait, and things happen as written.

    `signals[t]` arrive at second t; `deaths[t]` are (pid, exit code) pairs; `faults[name]` are the
    seconds at which a look at the program finds a fault; `stops[t]` is a process that SIGSTOP
    reaches at second t. A process that is asked to stop ends after `stopping` seconds, and a killed
    one at once, one of `slow` after seconds of its own; what it left in its group is gone after
    `lingering` more. Nothing ends those of `undying`, and the first signal to those of `deaf` is
    lost. Nothing can be started in the seconds of `no_memory`; nobody looks any more from
    `blind_from` on. Triton has done all that it has to do from `done_from` on.
    """

    signals: dict[int, list[Signals]] = field(default_factory=dict)
    deaths: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    faults: dict[str, range] = field(default_factory=dict)
    stops: dict[int, int] = field(default_factory=dict)
    stopping: float = 1
    slow: dict[int, float] = field(default_factory=dict)
    lingering: int = 0
    undying: frozenset[int] = frozenset()
    deaf: frozenset[int] = frozenset()
    no_memory: range = range(0)
    blind_from: float = math.inf
    done_from: float = math.inf
    time: int = 0
    sent: list[tuple[int, int, Signals]] = field(default_factory=list)
    spawned: list[str] = field(default_factory=list)
    spawned_at: list[tuple[int, str]] = field(default_factory=list)
    gone_at: dict[int, int] = field(default_factory=dict)
    ends: dict[int, tuple[float, int]] = field(default_factory=dict)

    def spawn(self, program: Program) -> int:
        if self.time in self.no_memory:
            raise OSError(12, "Cannot allocate memory")
        self.spawned.append(program.name)
        self.spawned_at.append((self.time, program.name))
        return len(self.spawned)

    def probe_result(self, program: Program) -> ProbeResult:
        fault = self.time in self.faults.get(program.name, ())
        return ProbeResult(min(self.time, self.blind_from), "it does not answer" if fault else "")

    def is_stopped(self, pid: int) -> bool:
        return any(self.time >= at and pid == stopped for at, stopped in self.stops.items())

    def group_is_gone(self, pid: int) -> bool:
        return self.time >= self.gone_at.setdefault(pid, self.time + self.lingering)

    def signal(self, pid: int, number: Signals) -> None:
        self.sent.append((self.time, pid, number))
        if pid in self.deaf:
            self.deaf -= {pid}
            return
        self.ends.setdefault(pid, (self.time + self.slow.get(pid, self.stopping), 0))

    def signal_group(self, pid: int, number: Signals) -> None:
        self.sent.append((self.time, -pid, number))
        if number == KILL:
            self.ends[pid] = (min(self.time, self.ends.get(pid, (self.time, 0))[0]), -9)

    def ended(self) -> Iterator[tuple[int, int]]:
        yield from self.deaths.pop(self.time, [])
        for pid, (when, code) in list(self.ends.items()):
            if when <= self.time and pid not in self.undying:
                del self.ends[pid]
                yield pid, code

    def wait(self, seconds: float) -> list[Signals]:
        self.time += 1
        assert self.time < 1000, "it waits for ever"
        return self.signals.get(self.time, [])

    def now(self) -> float:
        return self.time


@dataclass
class Outcome:
    script: Script
    code: int
    said: list[str]
    told: list[Mapping[str, Any]]
    announced: list[float]
    cleaned: list[int]
    levels: dict[str, str]


def supervise(
    script: Script,
    *,
    restarts: int = 2,
    stop_within: float = math.inf,
    answers_within: float = math.inf,
    start_timeout: float = 60,
) -> Outcome:
    out = Outcome(script, -1, [], [], [], [], {})
    programs = [
        Program(
            "Triton",
            lambda: ["t"],
            {},
            lambda: "",
            is_done=lambda pid: pid == 1 and script.time >= script.done_from,
            clean=lambda: out.cleaned.append(script.time),
        ),
        Program("gunicorn", lambda: ["g"], {}, lambda: "", stop_within=stop_within),
        Program(
            "NGINX",
            lambda: ["n"],
            {},
            lambda: "",
            stop_signal=QUIT,
            stop_within=answers_within,
            instead="gunicorn",
        ),
    ]

    def settled(took: float) -> bool:
        out.announced.append(took)
        return took >= 3

    policy = Policy(
        start_timeout=start_timeout, stop_timeout=25, restarts=restarts, window=600, patience=10
    )

    def say(line: str, level: str = INFO, /) -> None:
        out.said.append(line)
        out.levels[line] = level

    supervisor = Supervisor(programs, script, policy, say, out.told.append, settled)
    out.code = supervisor.run()
    return out
