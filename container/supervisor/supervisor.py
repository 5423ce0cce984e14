"""Starts some programs in order, watches and restarts them, and stops them in reverse order.

    WAITING ──delay──▶ STARTING ──first good look──▶ RUNNING
       ▲                  │ died, too slow              │ died, or a fault that stays
       └──── group gone ── ENDING ◀─────────────────────┘

A program that dies, or whose fault stays for `patience`, is killed with all that it started and is
restarted, each time after a longer delay. One that dies before it ever worked, or that was
restarted too often, ends the container: the others are stopped, and the exit code is never 0.

When a signal asks for the end the programs are stopped one after the other, each given the time
to finish its work; what still runs when the time is up is killed. The clock starts at the signal.

Everything that touches the machine is passed in, so that the tests are scripted histories.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from signal import Signals
from typing import Any

from container.supervisor.program import Policy, Program, System
from container.supervisor.signals import STOP_SIGNALS, described, exit_code_for

BUSY_S = 0.05  # between two looks while something starts or ends
CALM_S = 0.5

# Within this a second signal is the same wish: `make` and a shell each pass one on.
SAME_WISH_S = 1.0

# A killed process is gone in milliseconds, unless the kernel is busy with its memory.
GONE_S = 5.0

# One that is not gone by then hangs in the kernel, as in a driver; at the end it is left behind.
NEVER_GONE_S = 60.0
LEFT_S = 2.0

# One that was just being started is asked again to end: NGINX forgets a signal that comes before it
# begins to wait for them.
ASK_AGAIN_S = 1.0

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 8.0

# What took so long at first hangs when it takes longer than this at a later start.
RESTART_SHARE, RESTART_LEAST_S = 3, 60.0

# A look takes a few seconds at most.
STALE_S = 20.0

# One that has done its work is killed then: only threads that sleep or hang are left in it.
DONE_S = 1.0

LONGEST_REASON = 200  # characters; the web workers pass it on to callers


class State(Enum):
    """What a program does; the values are published."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass
class Course:
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


@dataclass
class Supervisor:
    """Runs `programs` until a signal asks for the end, or one cannot be kept running.

    Args:
        programs: in the order in which they are started.
        system: the machine.
        policy: when enough is enough.
        say: takes a line for the operator.
        publish: takes the status for the web workers, as JSON can hold it, when it has changed.
        settled: called with the seconds since the start, from when all have worked until it says
            that the outcome of the start is known and logged.

    """

    programs: Sequence[Program]
    system: System
    policy: Policy
    say: Callable[[str], None]
    publish: Callable[[Mapping[str, Any]], None]
    settled: Callable[[float], bool]
    _courses: list[Course] = field(default_factory=list)
    _turns: dict[int, float] = field(default_factory=dict)
    _asked_at: float | None = None
    _last_asked: float = 0.0
    _killed_at: float | None = None
    _exit_code: int = 0
    _kill_at: float | None = None
    _published: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> int:
        """Return the exit code: 0 only where a signal asked for the end and all went well."""
        self._courses = [Course(program) for program in self.programs]
        try:
            self._watch()
        finally:
            # Whatever went wrong here, nothing is left running.
            for course in self._courses:
                if course.alive:
                    self.system.signal_group(course.pid, signal.SIGKILL)
        return self._exit_code

    def _watch(self) -> None:
        started, settled = self.system.now(), False
        while not self._stopping or self._some_are_left():
            if not self._stopping:
                for course in self._courses:
                    if not self._stopping:
                        self._step(course)
            if not (settled or self._stopping) and all(c.worked for c in self._courses):
                settled = self.settled(self.system.now() - started)
            self._publish()
            calm = settled and all(c.state is State.RUNNING for c in self._courses)
            for number in self.system.wait(CALM_S if calm and not self._stopping else BUSY_S):
                if number in STOP_SIGNALS:
                    self._asked_to_stop(number)
            for pid, code in self.system.ended():
                self._ended(pid, code)
            if self._stopping:
                self._publish()
                self._stop_next()

    def _some_are_left(self) -> bool:
        """Whether something still runs that has to end."""
        running = [course.program.name for course in self._courses if course.alive]
        if self._killed_at is None or self.system.now() < self._killed_at + LEFT_S:
            return bool(running)
        if running:
            self.say(f"{', '.join(running)} cannot be killed: leaving without")
        return False

    def _step(self, course: Course) -> None:
        """Do what a program's state asks for now."""
        now = self.system.now()
        if course.state is State.WAITING:
            if now >= course.since + course.delay():
                self._start(course, now)
        elif course.state is State.STARTING:
            self._wait_until_it_works(course, now)
        elif course.state is State.RUNNING:
            self._see_that_it_works(course, now)
        elif course.alive:
            if now > course.since + NEVER_GONE_S:
                name = course.program.name
                self.say(
                    f"{name} was killed {NEVER_GONE_S:.0f} s ago and is still there: giving up"
                )
                self._begin_to_stop(exit_code=1)
        elif self.system.group_is_gone(course.pid) or now > course.since + GONE_S:
            course.program.clean()
            course.enter(State.WAITING, now)

    def _start(self, course: Course, now: float) -> None:
        try:
            work = course.program.work()
            course.pid, course.alive = self.system.spawn(course.program), True
        except OSError as error:
            course.reason = f"it cannot be started ({error})"
            course.enter(State.WAITING, now)
            self._restart_or_stop(course, f"cannot be started ({error})", 1)
            return
        course.starts += 1
        course.work = course.work if course.worked else work
        course.as_first = course.work == work
        course.enter(State.STARTING, now)

    def _start_timeout(self, course: Course) -> float:
        """Return the seconds from a start until a program must work."""
        if not (course.worked and course.as_first):
            return self.policy.start_timeout
        return min(self.policy.start_timeout, max(RESTART_LEAST_S, RESTART_SHARE * course.took))

    def _wait_until_it_works(self, course: Course, now: float) -> None:
        name, fault, took = course.program.name, self._fault(course), now - course.since
        # One that is stopped will not become ready.
        stopped = self.system.is_stopped(course.pid)
        if not fault:
            self.say(f"{name} is ready {'again ' if course.worked else ''}after {took:.1f} s")
            course.took = course.took if course.worked else took
            course.worked, course.reason = True, ""
            course.enter(State.RUNNING, now)
        elif took > (self.policy.patience if stopped else self._start_timeout(course)):
            text = f"{name} is not ready after {took:.0f} s: {fault}"
            if course.worked:
                self.say(f"{text}; killing it")
                self._kill(course, fault)
            else:
                self.say(f"{text}; giving up")
                self._begin_to_stop(exit_code=1)

    def _see_that_it_works(self, course: Course, now: float) -> None:
        fault = self._fault(course)
        if not fault:
            course.faulty_since = None
            return
        course.faulty_since = course.faulty_since or now
        if now >= course.faulty_since + self.policy.patience:
            self.say(f"{course.program.name} does not do its work: {fault}; killing it")
            self._kill(course, fault)

    def _fault(self, course: Course) -> str:
        """Return what is wrong with a running program; nothing where nothing is known to be."""
        if self.system.is_stopped(course.pid):
            return "it is stopped"
        look = self.system.look(course.program)
        running = course.state is State.RUNNING
        if running and self.system.now() > max(look.began, course.since) + STALE_S:
            return "nobody came back from looking at it"
        if look.began >= course.since:
            return look.fault
        return "" if running else "it was not looked at yet"

    def _kill(self, course: Course, reason: str) -> None:
        """Kill a program and all that it started; `_ended` sees it die like any other."""
        course.enter(State.ENDING, self.system.now())
        course.reason = reason
        self.system.signal_group(course.pid, signal.SIGKILL)

    @property
    def _stopping(self) -> bool:
        return self._kill_at is not None

    def _asked_to_stop(self, number: Signals) -> None:
        if self._asked_at is None:
            self._asked_at = self.system.now()
            if self._stopping:  # by itself
                self.say(f"{number.name}: stopping already, finishing what is in flight")
            else:
                self.say(f"{number.name}: finishing what is in flight, then stopping")
                self._begin_to_stop(exit_code=0)
        elif self.system.now() >= self._asked_at + SAME_WISH_S:
            self.say(f"{number.name} again: stopping at once")
            self._kill_at = self.system.now()

    def _ended(self, pid: int, code: int) -> None:
        course = next((c for c in self._courses if c.alive and c.pid == pid), None)
        if course is None:
            return  # an orphan, adopted from a program that died
        course.alive = False
        # What it started goes with it.
        self.system.signal_group(pid, signal.SIGKILL)
        name = course.program.name
        if self._stopping:
            was_killed = course.state is State.ENDING or self._killed_at is not None
            if code not in (0, -course.program.stop_signal) and not was_killed:
                self.say(f"{name} died while stopping ({described(code)})")
                self._exit_code = self._exit_code or exit_code_for(code)
            return
        if course.state is not State.ENDING:
            course.reason = f"it died ({described(code)})"
            course.enter(State.ENDING, self.system.now())
        self._restart_or_stop(course, f"died ({described(code)})", exit_code_for(code) or 1)

    def _restart_or_stop(self, course: Course, what: str, exit_code: int) -> None:
        """Restart a program when its group is gone; give up if it never worked, or dies too often.

        Args:
            course: of the program.
            what: happened to it.
            exit_code: where this is the end.

        """
        now, name, policy = self.system.now(), course.program.name, self.policy
        if not course.worked:
            self.say(f"{name} {what}: stopping the others")
            self._begin_to_stop(exit_code)
            return
        course.restarts = [at for at in course.restarts if at > now - policy.window]
        if len(course.restarts) >= policy.restarts:
            self.say(
                f"{name} {what} after {policy.restarts} restarts within "
                f"{policy.window:.0f} s: stopping the others"
            )
            self._begin_to_stop(exit_code)
            return
        course.restarts.append(now)
        self.say(
            f"{name} {what}: restart {len(course.restarts)} of at most "
            f"{policy.restarts} within {policy.window:.0f} s"
        )

    def _publish(self) -> None:
        status = {
            "stopping": self._stopping,
            "programs": {
                course.program.name: {
                    "state": course.state.value,
                    "starts": course.starts,
                    "pid": course.pid,
                    "reason": course.reason[:LONGEST_REASON],
                }
                for course in self._courses
            },
        }
        if status != self._published:
            self._published = status
            self.publish(status)

    def _begin_to_stop(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._kill_at = self.system.now() + self.policy.stop_timeout
        for course in self._courses:
            if not course.alive:
                course.program.before_stop(False)  # noqa: FBT003

    def _stop_next(self) -> None:
        """Ask the last of the running programs to end, or kill all when the time is up."""
        running = [course for course in self._courses if course.alive]
        if not running:
            return
        if self._kill_at is not None and self.system.now() >= self._kill_at:
            self.say(f"killing {', '.join(course.program.name for course in running)}")
            for course in running:
                self.system.signal_group(course.pid, signal.SIGKILL)
            self._killed_at, self._kill_at = self.system.now(), math.inf
            self._exit_code = self._exit_code or 1
            return
        last, now = running[-1], self.system.now()
        if last.pid not in self._turns:
            # One that was stopped does nothing more before it.
            self.system.signal_group(last.pid, signal.SIGCONT)
            last.program.before_stop(True)  # noqa: FBT003  the hook has nothing else
            self._turns[last.pid] = self.system.now()
            self._ask_to_end(last, self.system.now())
        elif last.state is State.STARTING and now > self._last_asked + ASK_AGAIN_S:
            self._ask_to_end(last, now)
        elif last.state is State.RUNNING and self._has_been_done(last, now):
            self._kill(last, "")
        elif now > self._turns[last.pid] + last.program.stop_within:
            slow = last.program.instead or last.program.name
            for course in running:
                if course.program.name == slow and course.state is not State.ENDING:
                    self.say(f"{last.program.name} does not end in its time; killing {slow}")
                    self._kill(course, "")

    @staticmethod
    def _has_been_done(course: Course, now: float) -> bool:
        if course.done_since is None and course.program.is_done(course.pid):
            course.done_since = now
        return course.done_since is not None and now > course.done_since + DONE_S

    def _ask_to_end(self, course: Course, now: float) -> None:
        self._last_asked = now
        self.system.signal(course.pid, course.program.stop_signal)
        # A stopped process receives the signal only now.
        self.system.signal_group(course.pid, signal.SIGCONT)
