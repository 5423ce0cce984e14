"""The operating system for the supervisor: processes, signals, clock, probes."""

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
from contextlib import suppress
from pathlib import Path
from signal import Signals

from container.supervisor.program import ProbeResult, Program
from container.supervisor.signals import STOP_SIGNALS
from dispatcher.settings import PROJECT

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LIBC = ctypes.CDLL(None)

# Between two probes of a program that works, and of one that does not.
CALM_S = 1.0
EAGER_S = 0.1


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Machine:
    """The operating system; signals wake it through a socket, so that none is missed."""

    def __init__(self) -> None:
        wake, waker = socket.socketpair()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._probes: dict[str, ProbeThread] = {}
        for end in (wake, waker):
            end.settimeout(0)
        # Both stay open until this process is gone: a child may end while the interpreter exits.
        self._wake = wake.detach()
        signal.set_wakeup_fd(waker.detach())
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # Children of a program that dies are reparented to this process, which reaps them.
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def spawn(self, program: Program) -> int:
        """Start a program as the leader of a process group; return its process id."""
        # In a session of its own: a Ctrl-C in the terminal reaches this process alone.
        child = subprocess.Popen(
            program.command(),
            env=dict(program.environment),
            # Python looks for modules in the folder where it is started: not the caller's.
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=program.output,
            stderr=program.output,
            start_new_session=True,
            pass_fds=program.files,
            # Where this process is killed by SIGKILL, the programs end too.
            preexec_fn=die_with_parent,  # noqa: PLW1509  it takes no lock that a thread may hold
        )
        self._children[child.pid] = child
        if program.name not in self._probes:
            self._probes[program.name] = ProbeThread(program)
        return child.pid

    def probe_result(self, program: Program) -> ProbeResult:
        """Return the newest probe of a program that was started."""
        return self._probes[program.name].result

    def signal(self, pid: int, number: Signals) -> None:
        """Send a signal to one process; do nothing where it is gone."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def signal_group(self, pid: int, number: Signals) -> None:
        """Send a signal to a leader's whole process group; do nothing where it is gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)

    def group_is_gone(self, pid: int) -> bool:
        """Whether no process of a leader's group is left."""
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def is_stopped(self, pid: int) -> bool:
        """Whether SIGSTOP has stopped a process, and it was not continued since."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yield process id and exit code of every child that has ended, each once."""
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
        """Wait for signals, `seconds` at most; return those that have arrived."""
        select.select([self._wake], [], [], seconds)
        try:
            return [Signals(number) for number in os.read(self._wake, 4096)]
        except BlockingIOError:
            return []

    def now(self) -> float:
        return time.monotonic()


class ProbeThread(threading.Thread):
    """Probes a program repeatedly, so that the supervisor itself waits for no answer."""

    def __init__(self, program: Program) -> None:
        super().__init__(name=f"probe-{program.name}", daemon=True)
        self.program = program
        self.result = ProbeResult()
        self.start()

    def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                fault = self.program.fault()
            except Exception as error:
                fault = f"its probe failed ({type(error).__name__}: {error})"
            self.result = ProbeResult(began, fault)
            time.sleep(EAGER_S if self.result.fault else CALM_S)
