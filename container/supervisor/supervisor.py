"""Start programs in order, watch and restart them, stop them in reverse order.

    WAITING ──delay──▶ STARTING ──first good probe─▶ RUNNING
       ▲                  │ died, too slow              │ died, or a fault that stays
       └──── group gone ── ENDING ◀─────────────────────┘

A program that dies, or whose fault lasts for `patience`, is killed with all of its child processes
and restarted, after a delay that grows each time. A program that dies before it ever worked, by a
signal for the second time, or that was restarted too often, ends the container: the others are
stopped, and the exit code is not 0.

On a stop signal the programs are stopped one after the other, and each has time to finish its work.
What still runs at the deadline is killed. The clock starts at the signal.

All access to the system goes through `Machine`, so that the tests are scripted histories.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from signal import Signals
from typing import Any

from container.supervisor.log import ERROR, WARNING, Say
from container.supervisor.posix import Machine
from container.supervisor.program import Policy, Program
from container.supervisor.signals import STOP_SIGNALS
from dispatcher.exit_codes import in_words

BUSY_S = 0.05  # between two rounds while something starts or ends
CALM_S = 0.5

# A second signal within this time is a copy of the first: `make` and a shell each pass one on.
SAME_REQUEST_S = 1.0

# A killed process is gone in milliseconds, unless the kernel is busy with its memory.
GONE_S = 5.0

# A process that is not gone by then never will be: it hangs in the kernel, such as in a call of a
# driver. At the end the container exits without it.
NEVER_GONE_S = 60.0
LEFT_S = 2.0

# A program that was just being started is sent its stop signal again: NGINX ignores a signal that
# arrives before its handlers are in place.
ASK_AGAIN_S = 1.0

# A probe takes a few seconds at most.
STALE_S = 20.0

# A program that has finished its work and has not exited by then is killed: its remaining threads
# sleep or hang.
DONE_S = 1.0

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 8.0  # before a restart

# And the signal's number: the exit code of what a signal has ended, as shells have it.
SIGNALLED = 128

LONGEST_REASON = 200  # characters; web workers show it to callers


class State(Enum):
    """The state of a program; the values are those of the status file."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"


@dataclass
class Lifecycle:
    """The lifecycle of one program so far; times are those of `Machine.now`."""

    program: Program
    state: State = State.WAITING
    since: float = -math.inf
    pid: int = 0
    alive: bool = False
    faulty_since: float | None = None
    done_since: float | None = None  # after it was asked to end
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

    def has_been_done(self, now: float) -> bool:
        """Whether its work has been finished for some time, after it was asked to end."""
        if self.done_since is None and self.program.is_done(self.pid):
            self.done_since = now
        return self.done_since is not None and now > self.done_since + DONE_S


@dataclass
class Supervisor:
    """Runs `programs` until a stop signal arrives, or one cannot be kept running.

    `settled` takes the seconds since the start, and returns whether its outcome is known; it is
    called repeatedly once all programs have worked, until it returns true.
    """

    programs: Sequence[Program]
    system: Machine
    policy: Policy
    say: Say
    publish: Callable[[Mapping[str, Any]], None]  # for the web workers
    settled: Callable[[float], bool]
    also: Callable[[], Mapping[str, Any]] = dict  # what is published too
    _lifecycles: list[Lifecycle] = field(default_factory=list)
    _turns: dict[int, float] = field(default_factory=dict)
    _asked_at: float | None = None
    _last_asked: float = 0.0
    _killed_at: float | None = None
    _exit_code: int = 0
    _why: str = ""
    _kill_at: float | None = None
    _published: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> int:
        """Run the programs; return 0 only after a stop signal and a clean stop."""
        self._lifecycles = [Lifecycle(program) for program in self.programs]
        try:
            self._watch()
        finally:
            # Leave nothing running, whatever went wrong here.
            for lifecycle in self._lifecycles:
                if lifecycle.alive:
                    self.system.signal_group(lifecycle.pid, signal.SIGKILL)
        why = f": {self._why}" if self._why else ""
        self.say(f"stopped, with exit code {self._exit_code}{why}")
        return self._exit_code

    def _watch(self) -> None:
        started, settled = self.system.now(), False
        while not self._stopping or self._some_are_left():
            if not self._stopping:
                for lifecycle in self._lifecycles:
                    if not self._stopping:
                        self._step(lifecycle)
            if not (settled or self._stopping) and all(c.worked for c in self._lifecycles):
                settled = self.settled(self.system.now() - started)
            self._publish_status()
            calm = settled and all(c.state is State.RUNNING for c in self._lifecycles)
            for number in self.system.wait(CALM_S if calm and not self._stopping else BUSY_S):
                if number in STOP_SIGNALS:
                    self._asked_to_stop(number)
            for pid, code in self.system.ended():
                self._ended(pid, code)
            if self._stopping:
                self._publish_status()
                self._stop_next()

    def _some_are_left(self) -> bool:
        """Whether a process is left to wait for at the end."""
        running = [lifecycle.program.name for lifecycle in self._lifecycles if lifecycle.alive]
        if self._killed_at is None or self.system.now() < self._killed_at + LEFT_S:
            return bool(running)
        if running:
            self.say(
                f"{', '.join(running)} cannot be killed: exiting without waiting longer", ERROR
            )
        return False

    def _step(self, lifecycle: Lifecycle) -> None:
        """Advance one program according to its state."""
        now = self.system.now()
        if lifecycle.state is State.WAITING:
            if now >= lifecycle.since + lifecycle.delay():
                self._start(lifecycle, now)
        elif lifecycle.state is State.STARTING:
            self._wait_until_it_works(lifecycle, now)
        elif lifecycle.state is State.RUNNING:
            self._see_that_it_works(lifecycle, now)
        elif lifecycle.alive:
            if now > lifecycle.since + NEVER_GONE_S:
                name = lifecycle.program.name
                self._give_up(f"{name} was killed {NEVER_GONE_S:.0f} s ago and is still there")
        elif self.system.group_is_gone(lifecycle.pid) or now > lifecycle.since + GONE_S:
            lifecycle.program.clean()
            lifecycle.enter(State.WAITING, now)

    def _start(self, lifecycle: Lifecycle, now: float) -> None:
        try:
            lifecycle.pid, lifecycle.alive = self.system.spawn(lifecycle.program), True
        except OSError as error:
            lifecycle.reason = f"it cannot be started ({error})"
            lifecycle.enter(State.WAITING, now)
            self._restart_or_stop(lifecycle, f"cannot be started ({error})", 1)
            return
        lifecycle.starts += 1
        lifecycle.enter(State.STARTING, now)

    def _wait_until_it_works(self, lifecycle: Lifecycle, now: float) -> None:
        name, fault, took = lifecycle.program.name, self._fault(lifecycle), now - lifecycle.since
        # A process that SIGSTOP has stopped will not become ready.
        stopped = self.system.is_stopped(lifecycle.pid)
        if not fault:
            self.say(f"{name} is ready {'again ' if lifecycle.worked else ''}after {took:.1f} s")
            lifecycle.worked, lifecycle.reason = True, ""
            lifecycle.enter(State.RUNNING, now)
        elif took > (self.policy.patience if stopped else self.policy.start_timeout):
            text = f"{name} is not ready after {took:.0f} s: {fault}"
            if lifecycle.worked:
                self.say(f"{text}; killing it", ERROR)
                self._kill(lifecycle, fault)
            else:
                self._give_up(text)

    def _see_that_it_works(self, lifecycle: Lifecycle, now: float) -> None:
        fault = self._fault(lifecycle)
        if not fault:
            lifecycle.faulty_since = None
            return
        lifecycle.faulty_since = lifecycle.faulty_since or now
        if now >= lifecycle.faulty_since + self.policy.patience:
            self.say(f"{lifecycle.program.name} fails its probe: {fault}; killing it", ERROR)
            self._kill(lifecycle, fault)

    def _fault(self, lifecycle: Lifecycle) -> str:
        """Return what is wrong with a running program; empty where no fault is known."""
        if self.system.is_stopped(lifecycle.pid):
            return "it is stopped"
        probe = self.system.probe_result(lifecycle.program)
        running = lifecycle.state is State.RUNNING
        if running and self.system.now() > max(probe.began, lifecycle.since) + STALE_S:
            return "its probe does not return"
        if probe.began >= lifecycle.since:
            return probe.fault
        return "" if running else "it was not probed yet"

    def _kill(self, lifecycle: Lifecycle, reason: str) -> None:
        """Kill a program and its process group; its death is handled like any other."""
        lifecycle.enter(State.ENDING, self.system.now())
        lifecycle.reason = reason
        self.system.signal_group(lifecycle.pid, signal.SIGKILL)

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
        elif self.system.now() >= self._asked_at + SAME_REQUEST_S:
            self.say(f"{number.name} again: stopping at once", WARNING)
            self._kill_at = self.system.now()

    def _ended(self, pid: int, code: int) -> None:
        lifecycle = next((c for c in self._lifecycles if c.alive and c.pid == pid), None)
        if lifecycle is None:
            return  # an orphan that was reparented to this process
        lifecycle.alive = False
        # Its child processes end with it.
        self.system.signal_group(pid, signal.SIGKILL)
        name = lifecycle.program.name
        if self._stopping:
            expected = lifecycle.state is State.ENDING or self._killed_at is not None
            if code not in (0, -lifecycle.program.stop_signal) and not expected:
                self.say(f"{name} died while stopping ({in_words(code)})", ERROR)
                self._exit_code = self._exit_code or exit_code_for(code)
            return
        if lifecycle.state is not State.ENDING:
            lifecycle.reason = f"it died ({in_words(code)})"
            lifecycle.enter(State.ENDING, self.system.now())
        self._restart_or_stop(lifecycle, f"died ({in_words(code)})", code)

    def _restart_or_stop(self, lifecycle: Lifecycle, what: str, code: int) -> None:
        """Restart a program once its process group is gone, or stop the container.

        The container stops where the program never worked or was restarted too often. A crash at
        the first start may be chance: Triton aborts where a machine is too busy to load a model.
        """
        now, name, policy = self.system.now(), lifecycle.program.name, self.policy
        exit_code = exit_code_for(code) or 1
        is_first_crash = code < 0 and lifecycle.starts == 1
        if not (lifecycle.worked or is_first_crash):
            self._give_up(f"{name} {what}", exit_code)
            return
        lifecycle.restarts = [at for at in lifecycle.restarts if at > now - policy.window]
        if len(lifecycle.restarts) >= policy.restarts:
            within = f"{policy.restarts} restarts within {policy.window:.0f} s"
            self._give_up(f"{name} {what} after {within}", exit_code)
            return
        lifecycle.restarts.append(now)
        self.say(
            f"{name} {what}: restart {len(lifecycle.restarts)} of at most "
            f"{policy.restarts} within {policy.window:.0f} s",
            ERROR,
        )

    def _publish_status(self) -> None:
        status = {
            "stopping": self._stopping,
            **self.also(),
            "programs": {
                lifecycle.program.name: {
                    "state": lifecycle.state.value,
                    "starts": lifecycle.starts,
                    "pid": lifecycle.pid,
                    "reason": lifecycle.reason[:LONGEST_REASON],
                }
                for lifecycle in self._lifecycles
            },
        }
        if status != self._published:
            self._published = status
            try:
                self.publish(status)
            except OSError as error:
                what = f"the status for the web workers cannot be written: {error.strerror}"
                self.say(what, WARNING)

    def _give_up(self, why: str, exit_code: int = 1) -> None:
        self._why = why
        self.say(f"{why}: stopping the others", ERROR)
        self._begin_to_stop(exit_code)

    def _begin_to_stop(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._kill_at = self.system.now() + self.policy.stop_timeout

    def _stop_next(self) -> None:
        """Ask the last of the running programs to end, or kill all at the deadline."""
        running = [lifecycle for lifecycle in self._lifecycles if lifecycle.alive]
        if not running:
            return
        if self._kill_at is not None and self.system.now() >= self._kill_at:
            self.say(
                f"killing {', '.join(lifecycle.program.name for lifecycle in running)}", WARNING
            )
            for lifecycle in running:
                self.system.signal_group(lifecycle.pid, signal.SIGKILL)
            self._killed_at, self._kill_at = self.system.now(), math.inf
            self._exit_code = self._exit_code or 1
            return
        last, now = running[-1], self.system.now()
        if last.pid not in self._turns:
            # Continue a process that SIGSTOP has stopped: else it would do no more work.
            self.system.signal_group(last.pid, signal.SIGCONT)
            self._turns[last.pid] = now
            self._ask_to_end(last, now)
        elif last.state is State.STARTING and now > self._last_asked + ASK_AGAIN_S:
            self._ask_to_end(last, now)
        elif last.state is State.RUNNING and last.has_been_done(now):
            self._kill(last, "")
        elif now > self._turns[last.pid] + last.program.stop_within:
            slow = last.program.instead or last.program.name
            for lifecycle in running:
                if lifecycle.program.name == slow and lifecycle.state is not State.ENDING:
                    self.say(
                        f"{last.program.name} has not stopped in time; killing {slow}", WARNING
                    )
                    self._kill(lifecycle, "")

    def _ask_to_end(self, lifecycle: Lifecycle, now: float) -> None:
        self._last_asked = now
        self.system.signal(lifecycle.pid, lifecycle.program.stop_signal)
        # A process that SIGSTOP has stopped handles the signal only when it is continued.
        self.system.signal_group(lifecycle.pid, signal.SIGCONT)


def exit_code_for(code: int) -> int:
    """Return the exit code that a shell gives; signals are negative in `code`."""
    return code if code >= 0 else SIGNALLED - code
