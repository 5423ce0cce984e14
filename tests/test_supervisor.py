"""The supervisor, as scripted histories: what happens, and what it does about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from signal import Signals

import pytest

from container.supervisor import Program, Supervisor, described

KILL, QUIT, TERM, INT = Signals.SIGKILL, Signals.SIGQUIT, Signals.SIGTERM, Signals.SIGINT


@dataclass
class Script:
    """A machine on which time passes by a second a wait, and things happen as written.

    `signals[t]` arrive at second t; `deaths[t]` are (pid, exit code) pairs; a process that is
    asked to stop ends after `stopping` seconds, and a killed one at once.
    """

    signals: dict[int, list[Signals]] = field(default_factory=dict)
    deaths: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    stopping: float = 1
    time: int = 0
    sent: list[tuple[int, int, Signals]] = field(default_factory=list)
    spawned: list[str] = field(default_factory=list)
    ends: dict[int, tuple[float, int]] = field(default_factory=dict)

    def spawn(self, program: Program) -> int:
        self.spawned.append(program.name)
        return len(self.spawned)

    def signal(self, pid: int, number: Signals) -> None:
        self.sent.append((self.time, pid, number))
        self.ends.setdefault(pid, (self.time + self.stopping, 0))

    def signal_group(self, pid: int, number: Signals) -> None:
        self.sent.append((self.time, -pid, number))
        if number == KILL:
            self.ends[pid] = (min(self.time, self.ends.get(pid, (self.time, 0))[0]), -9)

    def ended(self) -> Iterator[tuple[int, int]]:
        yield from self.deaths.pop(self.time, [])
        for pid, (when, code) in list(self.ends.items()):
            if when <= self.time:
                del self.ends[pid]
                yield pid, code

    def wait(self, seconds: float | None) -> list[Signals]:
        self.time += 1
        assert self.time < 1000, "it waits for ever"
        return self.signals.get(self.time, [])

    def now(self) -> float:
        return self.time


def supervise(script: Script, *, ready: bool = True) -> tuple[int, list[str], list[float]]:
    said: list[str] = []
    announced: list[float] = []
    programs = [
        Program("Triton", ["t"], {}, lambda: ready),
        Program("gunicorn", ["g"], {}, lambda: ready),
        Program("NGINX", ["n"], {}, lambda: ready, stop_signal=QUIT),
    ]

    def settled(took: float) -> bool:
        announced.append(took)
        return took >= 3

    code = Supervisor(programs, script, said.append, 60, 25, settled).run()
    return code, said, announced


@pytest.mark.parametrize("number", [TERM, INT, Signals.SIGHUP])
def test_a_signal_stops_all_in_reverse_order_and_exits_0(number: Signals) -> None:
    script = Script(signals={5: [number]})
    code, said, announced = supervise(script)
    assert code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX"]
    asked = [(pid, n) for _, pid, n in script.sent if pid > 0]
    assert asked == [(3, QUIT), (2, TERM), (1, TERM)]
    assert announced == [1, 2, 3], "asked until it is settled, then no more"
    assert f"{number.name}: finishing what is in flight, then stopping" in said


def test_each_is_asked_only_when_the_one_before_it_has_ended() -> None:
    script = Script(signals={5: [TERM]}, stopping=3)
    supervise(script)
    assert [time for time, pid, _ in script.sent if pid > 0] == [5, 8, 11]


def test_what_still_runs_when_the_time_is_up_is_killed_and_said() -> None:
    """The clock starts at the signal, not at the program whose turn it is."""
    script = Script(signals={5: [TERM]}, stopping=1000)
    code, said, _ = supervise(script)
    assert code != 0
    assert [(t, pid) for t, pid, n in script.sent if n == KILL][:3] == [
        (30, -1),
        (30, -2),
        (30, -3),
    ]
    assert "killing Triton, gunicorn, NGINX" in said


def test_a_second_signal_stops_at_once() -> None:
    script = Script(signals={5: [TERM], 7: [INT]}, stopping=1000)
    supervise(script)
    assert min(t for t, _, n in script.sent if n == KILL) == 7


@pytest.mark.parametrize(("died", "expected"), [(3, 3), (-9, 137), (0, 1)])
@pytest.mark.parametrize("pid", [1, 2, 3])
def test_a_death_stops_the_others_and_is_never_exit_code_0(
    pid: int, died: int, expected: int
) -> None:
    script = Script(deaths={4: [(pid, died)]})
    code, said, _ = supervise(script)
    assert code == expected
    asked = [p for _, p, _ in script.sent if p > 0]
    assert asked == [p for p in (3, 2, 1) if p != pid]
    name = ["Triton", "gunicorn", "NGINX"][pid - 1]
    assert f"{name} died ({described(died)}): stopping the others" in said


def test_a_second_signal_that_comes_with_the_first_is_the_same_wish() -> None:
    script = Script(signals={5: [TERM, TERM]}, stopping=3)
    code, said, _ = supervise(script)
    assert code == 0
    assert not any("at once" in line for line in said)


def test_a_crash_while_stopping_is_not_exit_code_0() -> None:
    script = Script(signals={5: [TERM]}, deaths={6: [(1, -11)]}, stopping=3)
    code, said, _ = supervise(script)
    assert code == 139
    assert "Triton died while stopping (SIGSEGV)" in said


def test_nothing_is_left_when_the_supervisor_itself_fails() -> None:
    script = Script()

    def broken() -> bool:
        raise RuntimeError("a bug")

    program = Program("Triton", ["t"], {}, broken)
    with pytest.raises(RuntimeError, match="a bug"):
        Supervisor([program], script, lambda line: None, 60, 25, lambda took: True).run()
    assert (1, -1, KILL) in script.sent


def test_what_a_dead_program_leaves_behind_is_killed() -> None:
    script = Script(deaths={4: [(1, -9)]})
    supervise(script)
    assert (4, -1, KILL) in script.sent


def test_the_end_of_an_orphan_is_nobody_s_business() -> None:
    script = Script(deaths={4: [(99, 1)]}, signals={6: [TERM]})
    code, said, _ = supervise(script)
    assert code == 0
    assert not any("died" in line for line in said)


def test_the_first_death_decides() -> None:
    script = Script(deaths={4: [(1, 3), (2, 7)]})
    code, said, _ = supervise(script)
    assert code == 3
    assert [line for line in said if "stopping the others" in line] == [
        "Triton died (exit code 3): stopping the others"
    ]


def test_a_program_that_is_never_ready_ends_the_start() -> None:
    script = Script()
    code, said, announced = supervise(script, ready=False)
    assert code == 1
    assert announced == []
    assert any("Triton is not ready after" in line for line in said)
