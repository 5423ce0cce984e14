"""The processes that Triton has for models in Python: which of them died.

Triton finds out only when it hands the next request to such a process. Those that it has handed
over before, and is not waiting for itself, would stay without an answer.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dispatcher.exit_codes import in_words

STUB = re.compile(rb"triton_python_backend_stub\0[^\0]*/([^/\0]+)/\d+/")
"""The command line: the program, and the model's file in `<model>/<version>/`."""

IN_ORDER = "exit code 0"


@dataclass(frozen=True)
class Death:
    """How a process of a model died.

    Args:
        how: the signal or exit code.
        left: how many processes the model has that live.

    """

    how: str
    left: int


class ModelProcesses:
    """The children of a Triton, as /proc shows them.

    Args:
        proc: where that is.

    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.proc = proc
        self._known: dict[int, str] = {}  # the models by process; nothing for other processes
        self._triton = 0

    def died(self, triton: int) -> dict[str, Death]:
        """Return by model how a process of it died, for each that did since the last call.

        Args:
            triton: its process id.

        """
        if triton != self._triton:
            self._triton, self._known = triton, {}
        there = {int(name) for name in os.listdir(self.proc) if name.isdigit()}  # noqa: PTH208
        self._known = {pid: model for pid, model in self._known.items() if pid in there}
        for pid in there - self._known.keys():
            self._learn(pid)
        ends = {pid: how for pid, model in self._known.items() if (how := self._end(pid, model))}
        by_model = {self._known[pid]: how for pid, how in ends.items() if how != IN_ORDER}
        self._known |= dict.fromkeys(ends, "")
        left = Counter(self._known.values())
        return {model: Death(how, left[model]) for model, how in by_model.items()}

    def living(self) -> Counter[str]:
        """Return how many processes each model had at the last call of `died`."""
        return Counter(model for model in list(self._known.values()) if model)

    def _learn(self, pid: int) -> None:
        fields = self._fields(pid)
        if len(fields) < 2 or int(fields[1]) != self._triton:
            self._known[pid] = ""
            return
        try:
            found = STUB.search((self.proc / str(pid) / "cmdline").read_bytes())
        except OSError:
            return
        if found:  # otherwise it has not become one yet
            self._known[pid] = found[1].decode(errors="replace")

    def _end(self, pid: int, model: str) -> str:
        """Return the signal or exit code of a model's process that has ended."""
        fields = self._fields(pid) if model else []
        if not fields or fields[0] != "Z":
            return ""
        return in_words(os.waitstatus_to_exitcode(int(fields[-1])))

    def _fields(self, pid: int) -> list[str]:
        """Return what /proc/PID/stat has behind the name: state, parent, …; see proc(5)."""
        try:
            return (self.proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []
