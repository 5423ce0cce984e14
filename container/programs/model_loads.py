"""The models that Triton is loading, by its log; ends the loads that would never end.

Triton 2.51 takes a model's process that gives no sign for a second while it is loaded for dead, as
on a busy machine, and waits without end for it to exit. If the process goes on, it may end Triton.
Triton also waits without end for a model that does not return from its import or `initialize`, and
answers nobody until the loads of its start are done.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from container.supervisor.log import ERROR, WARNING, Log, Say
from dispatcher.log_lines import STDERR
from dispatcher.settings import SUPERVISOR, Settings
from dispatcher.status.status_file import StatusReader

LOOK_S = 0.1
# A process that exits by itself is not killed: it has this long.
GIVEN_UP_S = 0.4
ABORT_S = 1.0
NEW_S = 2.0
START_SHARE = 0.75
# Of Triton's own code, and not what a model logs by `pb_utils.Logger`.
LINE = re.compile(
    rb"[IWE]\d{4} [\d:. ]+ \w+\.cc:\d+\] "
    rb"\"(?:(loading): (.+):\d+|(?:successfully|failed to) load(?:ed)? '(.+?)')"
)
WAIT4 = {"x86_64": "61", "aarch64": "260"}.get(platform.machine(), "none")


class ModelLoads:
    """Follows Triton's lines, and ends processes of models that Triton waits for in vain.

    `triton` returns Triton's process id, 0 where it does not run, and whether it has started. A
    load takes `START_SHARE` of what is left of `start_timeout` at most, so that Triton can answer
    for the other models, and of all of it later.
    """

    def __init__(
        self,
        triton: Callable[[], tuple[int, bool]],
        start_timeout: float,
        say: Say,
        proc: Path = Path("/proc"),
    ) -> None:
        self.since: dict[str, float] = {}
        """The models that are being loaded, and when that began."""
        self.hung: set[str] = set()
        """The models whose last load was ended because it had all its time."""
        self.lines = STDERR
        """The number of the file to which Triton logs; what models print goes elsewhere."""
        self._triton, self._say, self._proc = triton, say, proc
        self._start_timeout = start_timeout
        self._given_up: dict[int, float] = {}
        self._aborted: dict[int, float] = {}
        self._pid, self._started = 0, 0.0
        self._begun = threading.Event()

    def __call__(self, line: bytes) -> None:
        """Take a line that Triton itself logs; which is a text like any other."""
        if found := LINE.match(line):
            name = (found[2] or found[3]).decode(errors="replace")
            if found[1]:
                self.since[name] = time.monotonic()
                self.hung.discard(name)
                self._begun.set()
            else:
                self.since.pop(name, None)

    def watch(self) -> None:
        """Look at the loads for ever."""
        while self._begun.wait():
            time.sleep(LOOK_S)
            self._begun.clear()
            if self.since:
                self._begun.set()
                with suppress(OSError, LookupError):  # a process or a load has just ended
                    self.look(time.monotonic())

    def look(self, now: float) -> None:
        """End the processes that Triton has given up, and those that have had their time."""
        triton, has_started = self._triton()
        if triton != self._pid:  # what the one before was loading is loaded again, or not wanted
            self._pid, self._started = triton, now
            self.since = {model: at for model, at in self.since.items() if at > now - NEW_S}
        waited, there = self._waited_for(triton), dict(self._loaders(triton))
        self._given_up = {pid: self._given_up.get(pid, now) for pid in waited & there.keys()}
        self._aborted = {pid: at for pid, at in self._aborted.items() if pid in there}
        for pid, model in there.items():
            age = self._age(pid)
            begun = 0.0 if has_started else now - age - self._started
            limit = START_SHARE * (self._start_timeout - begun)
            if pid in self._given_up:
                if now >= self._given_up[pid] + GIVEN_UP_S:
                    self._say(
                        f"Triton has given up the process of the model {model}, which was silent "
                        "for a second or fails to end: killing it",
                        WARNING,
                    )
                    os.kill(pid, signal.SIGKILL)
            # Where a model is loaded again its other processes are older, and serve.
            elif limit < age < now - self.since[model] + NEW_S:
                self.hung.add(model)
                if pid not in self._aborted:  # what can still write says where it is
                    self._say(
                        f"the model {model} has been loading for {age:.0f} s, all the time "
                        "that it has: ending its process; it is not loaded once more by itself",
                        ERROR,
                    )
                    os.kill(pid, signal.SIGABRT)
                elif now >= self._aborted[pid] + ABORT_S:
                    os.kill(pid, signal.SIGKILL)
                self._aborted.setdefault(pid, now)

    def in_words(self) -> str:
        """Return which models are being loaded, and for how long; empty where none is."""
        now, since = time.monotonic(), dict(self.since)
        return ", ".join(f"{model} (for {now - at:.0f} s)" for model, at in since.items())

    def _waited_for(self, triton: int) -> set[int]:
        """Return the processes for whose end Triton waits; see proc_pid_syscall(5)."""
        calls = (text.split() for text in self._read(triton, "syscall"))
        return {int(call[1], 16) for call in calls if call[:1] == [WAIT4]}

    def _loaders(self, triton: int) -> Iterator[tuple[int, str]]:
        """Yield the processes in which the models are loaded, and the model of each."""
        for pid in self._children(triton):
            words = (self._proc / str(pid) / "cmdline").read_text("utf-8", "replace").split("\0")
            if len(words) > 8 and words[0].endswith("triton_python_backend_stub"):
                model = words[1].split("/")[-3]
                if model in self.since and words[8] != model:
                    yield pid, model
                elif model in self.since:  # it asks the model in a child, see trial/model.py
                    yield from ((child, model) for child in self._children(pid))

    def _children(self, pid: int) -> list[int]:
        return [int(one) for text in self._read(pid, "children") for one in text.split()]

    def _read(self, pid: int, name: str) -> Iterator[str]:
        """Yield what a file says of each thread of a process, where that can be read."""
        for file in (self._proc / str(pid) / "task").glob(f"*/{name}"):
            with suppress(OSError):
                yield file.read_text("utf-8")

    def _age(self, pid: int) -> float:
        """Return the seconds since a process was forked."""
        fields = (self._proc / str(pid) / "stat").read_text("utf-8").rpartition(")")[2].split()
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks


def model_loads(settings: Settings, run_dir: Path, log: Log) -> ModelLoads:
    """Return what follows the loads of the Triton that `serve` starts, in a thread of its own."""
    triton = StatusReader(
        run_dir / SUPERVISOR, lambda status: status["programs"]["Triton"], {"state": "starting"}
    )

    def process() -> tuple[int, bool]:
        status = triton()
        return int(status.get("pid", 0)), status["state"] == "running"

    loads = ModelLoads(process, settings.start_timeout, log.say)
    loads.lines = log.sink("triton", loads)
    threading.Thread(target=loads.watch, name="loads of models", daemon=True).start()
    return loads
