"""What the supervisor tells the web workers: it writes over a file, they read it whenever asked."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRITON = "Triton"
FRESH_S = 0.05  # every request asks for it


@dataclass(frozen=True)
class Notice:
    """The newest news.

    Args:
        stopping: the container was asked to end.
        programs: by name the `state` (waiting, starting, running or ending), the number of
            `starts`, the `pid`, and the `reason` why it is not running.

    """

    stopping: bool = False
    programs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def triton_starts(self) -> int:
        """How often Triton was started: what was learnt of it before the last time is void."""
        return int(self.programs.get(TRITON, {}).get("starts", 1))

    @property
    def triton_pid(self) -> int:
        """Triton's process; 0 where nobody told it."""
        return int(self.programs.get(TRITON, {}).get("pid", 0))

    @property
    def triton_fault(self) -> str:
        """Why Triton cannot be asked now; nothing where it runs."""
        triton = self.programs.get(TRITON, {})
        if triton.get("state", "running") == "running":
            return ""
        if triton["starts"] < 2 and not triton["reason"]:
            return "Triton is starting"
        return f"Triton is being restarted: {triton['reason']}"

    def restarts(self) -> dict[str, int]:
        """Return how often each program was restarted."""
        return {name: max(0, one["starts"] - 1) for name, one in self.programs.items()}


def reader(path: Path | None, fresh: float = FRESH_S) -> Callable[[], Notice]:
    """Return what reads the file, at most every `fresh` seconds; without one all is well."""
    newest, read_at = Notice(), -math.inf

    def read() -> Notice:
        nonlocal newest, read_at
        now = time.monotonic()
        if path is not None and now >= read_at + fresh:
            read_at = now
            try:
                newest = Notice(**json.loads(path.read_bytes()))
            except (OSError, ValueError):
                pass  # not there yet, or being written: what was known before still holds
        return newest

    return read
