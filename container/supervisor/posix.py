"""The machine as the supervisor needs it: processes, signals, a clock, and looks at programs."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from container.supervisor.program import Look, Program
from container.supervisor.signals import STOP_SIGNALS
from dispatcher.settings import PROJECT

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LIBC = ctypes.CDLL(None)

# Between two looks at a program: at one that works, and at one that does not.
CALM_S = 1.0
EAGER_S = 0.1


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Machine:
    """The real `System`. Signals wake it through a socket, so none is lost."""

    def __init__(self) -> None:
        wake, waker = socket.socketpair()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._lookouts: dict[str, Lookout] = {}
        for end in (wake, waker):
            end.settimeout(0)
        # Both stay open until the process is gone: a child may end while the interpreter does.
        self._wake = wake.detach()
        signal.set_wakeup_fd(waker.detach())
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # What a program leaves behind when it dies becomes ours, and is seen to end.
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def spawn(self, program: Program) -> int:
        # In a session of its own: a Ctrl-C in the terminal reaches this process alone.
        child = subprocess.Popen(
            program.command(),
            env=dict(program.environment),
            # Python looks for modules where it is started: not among the caller's.
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=program.output,
            stderr=program.output,
            start_new_session=True,
            pass_fds=program.files,
            # Where this process is killed outright, the programs follow it.
            preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock that a thread may hold
        )
        self._children[child.pid] = child
        if program.name not in self._lookouts:
            self._lookouts[program.name] = Lookout(program)
        return child.pid

    def look(self, program: Program) -> Look:
        return self._lookouts[program.name].look

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

    def group_is_gone(self, pid: int) -> bool:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def is_stopped(self, pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

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

    def wait(self, seconds: float) -> list[Signals]:
        select.select([self._wake], [], [], seconds)
        try:
            return [Signals(number) for number in os.read(self._wake, 4096)]
        except BlockingIOError:
            return []

    def now(self) -> float:
        return time.monotonic()


class Lookout(threading.Thread):
    """Looks at a program again and again, so that the supervisor itself never waits."""

    def __init__(self, program: Program) -> None:
        super().__init__(name=f"lookout-{program.name}", daemon=True)
        self.program = program
        self.look = Look()
        self.start()

    def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                fault = self.program.fault()
            except Exception as error:
                fault = f"it cannot be looked at ({type(error).__name__}: {error})"
            self.look = Look(began, fault)
            time.sleep(EAGER_S if self.look.fault else CALM_S)
