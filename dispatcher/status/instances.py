"""The processes that run the instances of models in Python: which died, and their models' reloads.

Triton detects a death only when it sends the process another request, so the requests that the
process was running may never be answered. Triton does not replace the process either: it keeps
sending it requests, which fail after a second, one by one. The model's other processes answer.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.errors import InferenceError
from clients.triton.server import ModelServer, ModelState
from dispatcher.exit_codes import in_words

log = logging.getLogger(__name__)

STUB = re.compile(rb"triton_python_backend_stub\0[^\0]*/([^/\0]+)/\d+/")
"""The command line: the program, and the model's file in `<model>/<version>/`."""

PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)

IN_ORDER = "exit code 0"

WORD_S = 3.0
"""Seconds that Triton has for a question about itself: a busy machine answers late, a server that
is silent for longer is not merely busy."""

# During one start of Triton: a reload leaves some 35 threads and 1 MB of shared memory in it where
# a request was handed to the process that died.
MOST_RELOADS = 10
NEVER_LOADED = -1  # the number of processes of a model that died while it was loaded


@dataclass(frozen=True)
class Death:
    """How a process of a model died."""

    how: str  # the signal or exit code
    left: int  # how many processes of the model live
    # When it was noticed, on the clock of `time.monotonic()`; 0 where that does not matter.
    at: float = 0.0


class ModelProcesses:
    """The children of Triton that run models, as /proc shows them."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._known: dict[int, str] = {}  # models by process; "" for other processes
        self._triton = 0

    def died(self, triton: int) -> dict[str, Death]:
        """Return the models with a process that died since the last call, and how it died."""
        if triton != self._triton:
            self._triton, self._known = triton, {}
        pids = {int(name) for name in os.listdir(self.proc) if name.isdigit()}  # noqa: PTH208
        self._known = {pid: model for pid, model in self._known.items() if pid in pids}
        for pid in pids - self._known.keys():
            self._learn(pid)
        ends = {pid: how for pid, model in self._known.items() if (how := self._end(pid, model))}
        by_model = {self._known[pid]: how for pid, how in ends.items() if how != IN_ORDER}
        self._known |= dict.fromkeys(ends, "")
        left = Counter(self._known.values())
        return {model: Death(how, left[model]) for model, how in by_model.items()}

    def by_model(self) -> dict[str, list[int]]:
        """Return the processes of each model that lived at the last call of `died`."""
        found: dict[str, list[int]] = {}
        for pid, model in list(self._known.items()):
            if model:
                found.setdefault(model, []).append(pid)
        return found

    def patience(self, model: str, longest: float) -> float:
        """Return the seconds for which a model may answer no probe, as its callers' requests run.

        A model without a process of its own waits for others, which are ended before it is stuck.
        """
        return longest if model in self.by_model() else 1.5 * longest

    def end(self, model: str) -> None:
        """Kill the processes of a model."""
        for pid in self.by_model().get(model, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end_stopped(self, model: str) -> None:
        """Kill the processes of a model that are stopped, but not by a debugger or profiler (t)."""
        for pid in self.by_model().get(model, ()):
            if read_fields(pid, self.proc)[:1] == ["T"]:
                log.error("a process of the model %s is stopped, and fails: killing it", model)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def adopt(self, triton: int, known: Mapping[str, Iterable[int]]) -> None:
        """Go on from what another `ModelProcesses` knew: a dead process does not tell its model."""
        self._triton = triton
        self._known = {pid: model for model, pids in known.items() for pid in pids}

    def _learn(self, pid: int) -> None:
        fields = read_fields(pid, self.proc)
        if len(fields) < 2 or int(fields[1]) != self._triton:
            self._known[pid] = ""
            return
        try:
            found = STUB.search((self.proc / str(pid) / "cmdline").read_bytes())
        except OSError:
            return
        if found:  # a process that was just forked has its own command line a moment later
            self._known[pid] = found[1].decode(errors="replace")

    def _end(self, pid: int, model: str) -> str:
        """Return the signal or exit code of a model's process that has ended."""
        fields = read_fields(pid, self.proc) if model else []
        if not fields or fields[0] != "Z":
            return ""
        return in_words(os.waitstatus_to_exitcode(int(fields[-1])))


def read_fields(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; see proc(5)."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def model_processes(triton: int, proc: Path = Path("/proc")) -> Iterator[tuple[str, int]]:
    """Yield the model and the process id of each process that runs a model now."""
    for children in (proc / str(triton) / "task").glob("*/children") if triton else ():
        with suppress(OSError):
            for pid in children.read_text(encoding="utf-8").split():
                with suppress(OSError):
                    if found := STUB.search((proc / pid / "cmdline").read_bytes()):
                        yield found[1].decode(errors="replace"), int(pid)


def process_memory(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the bytes of a process (PSS: what processes share counts once); 0 if it has ended."""
    with suppress(OSError):
        if found := PSS.search((proc / str(pid) / "smaps_rollup").read_text(encoding="utf-8")):
            return int(found[1]) * 1024
    return 0


def process_cpu(pid: int, *, children: bool = True) -> float:
    """Return the CPU seconds of a process, with those of its ended children; 0 if it has ended."""
    used = read_fields(pid)[11 : 15 if children else 13]  # utime, stime, cutime, cstime
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


class Reloads:
    """Loads a model again when one of its processes died; other models keep serving.

    One that died while it was loaded is loaded once more: it may have been merely slow. Not where
    it was ended because it had all its time: it would block other loads for as long again.
    """

    def __init__(self, server: ModelServer, timeout: float, done: Callable[[str], None]) -> None:
        self.lost: dict[str, int] = {}
        """The models that are to be loaded again, and how many of their processes live."""
        self._server = server
        self._timeout = timeout
        self._done = done
        self.ended: dict[str, int] = {}
        """The models whose processes were ended, and during which start; until they are loaded."""
        self._begun: set[str] = set()
        self._loaded: set[tuple[int, str]] = set()
        self._counts: Counter[int] = Counter()

    def begin(
        self,
        starts: int,
        ready: Mapping[str, int],
        models: Iterable[ModelState] = (),
        hung: Container[str] = (),
    ) -> None:
        """Begin to load models again, each in a thread of its own."""
        for died in {(starts, state.name) for state in models if state.died} - self._loaded:
            self._loaded.add(died)
            if died[1] not in hung:
                self.lost[died[1]] = NEVER_LOADED
        for model in self.lost.keys() - self._begun:
            arguments = model, starts, ready.get(model, 0)
            thread = threading.Thread(target=self.reload, args=arguments, daemon=True)
            self._begun.add(model)
            try:
                thread.start()
            except RuntimeError:  # there is no room for a thread
                self._begun.discard(model)
                raise

    def end(self, stuck: Iterable[str], processes: ModelProcesses, starts: int) -> None:
        """End the processes of stuck models: each is loaded again when their death is seen."""
        for model in stuck:
            if self.ended.get(model) != starts and model not in self.lost:
                self.ended[model] = starts
                processes.end(model)

    def reload(self, model: str, starts: int, versions: int) -> None:
        """Load a model again, unless it has as many processes as it needs."""
        try:
            is_new = self.lost[model] == NEVER_LOADED
            needed = 0 if is_new else versions * self._server.instances(model, timeout=WORD_S)
            if not is_new and self.lost[model] >= needed:
                return
            if not is_new and self._counts[starts] >= MOST_RELOADS:
                often = f"models were loaded again {MOST_RELOADS} times since Triton was started"
                log.warning("the model %s goes on with fewer processes: %s", model, often)
            else:
                self._counts[starts] += 1
                load = self._server.load if is_new else self._server.reload
                load(model, timeout=self._timeout)
                log.warning("the model %s was loaded again", model)
                self._done(model)
        except InferenceError as error:
            log.warning("the model %s cannot be loaded again: %s", model, error.message)
        finally:
            del self.lost[model]
            self._begun.discard(model)
