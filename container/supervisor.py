"""Starts some programs in order, watches them, and stops them in reverse.

The first end decides: when a program dies the others are stopped and the exit code is never 0.
When a signal asks for the end the programs are stopped one after the other, each given the time
to finish its work; what still runs when the time is up is killed. The clock starts at the signal.

Whatever touches the machine is handed in, so that the tests are scripted histories.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import Protocol

TICK_S = 0.05  # between two looks at a program that is starting

# SIGHUP: the terminal is gone.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Within this a second signal is the same wish: `make` and a shell each pass one on.
SAME_WISH_S = 1.0


@dataclass(frozen=True)
class Program:
    """A program to run.

    Args:
        name: for the log.
        command: the program and its arguments.
        environment: all of its environment variables.
        ready: a quick look whether it does its work by now.
        stop_signal: what asks it to finish its work and end.
        output: the file that takes what it writes; `None` means this process's own.

    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    stop_signal: Signals = signal.SIGTERM
    output: int | None = None


class System(Protocol):
    """What the supervisor needs of the machine."""

    def spawn(self, program: Program) -> int:
        """Start a program as the leader of a process group; return its process id."""

    def signal(self, pid: int, number: Signals) -> None:
        """Send a signal to one process; to none where it is gone."""

    def signal_group(self, pid: int, number: Signals) -> None:
        """Send a signal to a leader's whole group; to none where it is gone."""

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yield process id and exit code of every child that ended, each once."""

    def wait(self, seconds: float | None) -> list[Signals]:
        """Return the signals that came, as soon as there are any, at the latest after a time."""

    def now(self) -> float:
        """Return the seconds on a clock that only goes forward."""


@dataclass
class Supervisor:
    """Runs `programs` until one dies or a signal asks for the end.

    Args:
        programs: in the order in which they are started.
        system: the machine.
        say: takes a line for the operator.
        start_timeout: seconds from the start until all must be ready.
        stop_timeout: seconds from a signal until what is left is killed.
        settled: called with the seconds since the start, from when all are ready until it says
            that the outcome of the start is known, and told.

    """

    programs: Sequence[Program]
    system: System
    say: Callable[[str], None]
    start_timeout: float
    stop_timeout: float
    settled: Callable[[float], bool]
    _running: dict[int, Program] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    _asked_at: float = 0.0
    _killing: bool = False
    _exit_code: int = 0
    _kill_at: float | None = None

    def run(self) -> int:
        """Return the exit code: 0 only where a signal asked for the end and all went well."""
        try:
            self._watch()
        finally:
            # Whatever went wrong here, nothing is left running.
            for pid in self._running:
                self.system.signal_group(pid, signal.SIGKILL)
        return self._exit_code

    def _watch(self) -> None:
        started = self.system.now()
        for program in self.programs:
            self._running[self.system.spawn(program)] = program
        unready, settled = list(self.programs), False
        while self._running:
            for number in self.system.wait(None if settled and not self._stopping else TICK_S):
                if number in STOP_SIGNALS:
                    self._asked_to_stop(number)
            for pid, code in self.system.ended():
                self._ended(pid, code)
            if self._stopping:
                self._stop_next()
                continue
            for program in [program for program in unready if program.ready()]:
                unready.remove(program)
                self.say(f"{program.name} is ready after {self.system.now() - started:.1f} s")
            took = self.system.now() - started
            if not unready:
                settled = settled or self.settled(took)
            elif took > self.start_timeout:
                self.say(f"{unready[0].name} is not ready after {took:.0f} s: giving up")
                self._begin_to_stop(exit_code=1)

    @property
    def _stopping(self) -> bool:
        return self._kill_at is not None

    def _asked_to_stop(self, number: Signals) -> None:
        if not self._stopping:
            self.say(f"{number.name}: finishing what is in flight, then stopping")
            self._asked_at = self.system.now()
            self._begin_to_stop(exit_code=0)
        elif self.system.now() >= self._asked_at + SAME_WISH_S:
            self.say(f"{number.name} again: stopping at once")
            self._kill_at = self.system.now()

    def _ended(self, pid: int, code: int) -> None:
        program = self._running.pop(pid, None)
        if program is None:
            return  # an orphan that was left to us, as process 1 of a container
        # What it started goes with it.
        self.system.signal_group(pid, signal.SIGKILL)
        if not self._stopping:
            self.say(f"{program.name} died ({described(code)}): stopping the others")
            self._begin_to_stop(exit_code=exit_code_for(code) or 1)
        elif code not in (0, -program.stop_signal) and not self._killing:
            self.say(f"{program.name} died while stopping ({described(code)})")
            self._exit_code = self._exit_code or exit_code_for(code)

    def _begin_to_stop(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._kill_at = self.system.now() + self.stop_timeout
        self._stop_next()

    def _stop_next(self) -> None:
        """Ask the last of the running programs to end, or kill all when the time is up."""
        if not self._running:
            return
        if self._kill_at is not None and self.system.now() >= self._kill_at:
            names = ", ".join(program.name for program in self._running.values())
            self.say(f"killing {names}")
            for pid in self._running:
                self.system.signal_group(pid, signal.SIGKILL)
            self._killing, self._kill_at = True, float("inf")
            self._exit_code = self._exit_code or 1
            return
        pid, program = list(self._running.items())[-1]
        if pid not in self._asked:
            self._asked.add(pid)
            self.system.signal(pid, program.stop_signal)


def exit_code_for(code: int) -> int:
    """Return what a shell makes of an exit code, in which signals are negative."""
    return code if code >= 0 else 128 - code


def described(code: int) -> str:
    """Return an exit code in words; signals are negative, as `subprocess` has them."""
    return f"exit code {code}" if code >= 0 else Signals(-code).name


PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Machine:
    """The real `System`. Signals wake it through a socket, so none is lost and nothing polls."""

    def __init__(self) -> None:
        self._wake, waker = socket.socketpair()
        self._waker = waker
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        for end in (self._wake, waker):
            end.settimeout(0)
        signal.set_wakeup_fd(waker.fileno())
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def spawn(self, program: Program) -> int:
        # In a session of its own: a Ctrl-C in the terminal reaches this process alone.
        child = subprocess.Popen(
            program.command,
            env=dict(program.environment),
            stdin=subprocess.DEVNULL,
            stdout=program.output,
            stderr=program.output,
            start_new_session=True,
            # Where this process is killed outright, the programs follow it.
            preexec_fn=die_with_parent,  # noqa: PLW1509  no other thread's lock is needed for it
        )
        self._children[child.pid] = child
        return child.pid

    def signal(self, pid: int, number: Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def signal_group(self, pid: int, number: Signals) -> None:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def ended(self) -> Iterator[tuple[int, int]]:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if child := self._children.pop(pid, None):
                child.returncode = code  # it is reaped here, not by Popen
            yield pid, code

    def wait(self, seconds: float | None) -> list[Signals]:
        select.select([self._wake], [], [], seconds)
        try:
            return [Signals(number) for number in self._wake.recv(4096)]
        except BlockingIOError:
            return []

    def now(self) -> float:
        return time.monotonic()
