"""The status of the three programs, which the supervisor publishes to the web workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher.readiness.status_file import reader
from dispatcher.settings import SUPERVISOR

TRITON = "Triton"


@dataclass(frozen=True)
class SupervisorStatus:
    """What the supervisor knows.

    Args:
        stopping: whether the container was asked to end.
        programs: by name the `state` (waiting, starting, running or ending), the number of
            `starts`, the `pid`, and the `reason` why it is not running.

    """

    stopping: bool = False
    programs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def triton_starts(self) -> int:
        """How often Triton was started: what was found before the last start is void."""
        return int(self.programs.get(TRITON, {}).get("starts", 1))

    @property
    def triton_pid(self) -> int:
        """Triton's process; 0 where it is not known."""
        return int(self.programs.get(TRITON, {}).get("pid", 0))

    @property
    def triton_fault(self) -> str:
        """Why Triton cannot be asked now; the empty text where it runs."""
        triton = self.programs.get(TRITON, {})
        if triton.get("state", "running") == "running":
            return ""
        if triton["starts"] < 2 and not triton["reason"]:
            return "Triton is starting"
        return f"Triton is being restarted: {triton['reason']}"

    def restarts(self) -> dict[str, int]:
        """Return how often each program was restarted."""
        return {name: max(0, one["starts"] - 1) for name, one in self.programs.items()}


def supervisor_status(run_dir: Path | None) -> Callable[[], SupervisorStatus]:
    """Return a function that returns the newest status; all is well where there is no folder."""
    path = run_dir and run_dir / SUPERVISOR
    return reader(path, lambda fields: SupervisorStatus(**fields), SupervisorStatus())
