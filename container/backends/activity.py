"""Which model instances of this container are running, so that each run has its part of the cores.

Instances are processes of their own. They share one file with three numbers for each: its process,
until when it is busy, and how many runs it has. Nothing waits for anything, and a process that was
killed does not count.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SLOTS = 1024  # as many instances as one machine may have; those beyond share the last slot
PIDS, BUSY_UNTIL, RUNS = (slice(n * SLOTS, (n + 1) * SLOTS) for n in range(3))
SIZE = 3 * SLOTS * 8  # bytes

# Between two requests in a queue an instance is idle for a millisecond, which is no time to give
# its core away; `python -m bench` with 8 callers.
LINGER_NS = 3_000_000

RUNNING = 2**63 - 1


class Board:
    """One instance's view of the file.

    Args:
        file: made where it is missing.

    """

    def __init__(self, file: Path) -> None:
        self._runs = 0
        self._counted = threading.Lock()
        with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            # Taken now: on a disk that is full later it would be a SIGBUS.
            os.posix_fallocate(opened.fileno(), 0, SIZE)
            # (One number is written and read in a tenth of the time that an array takes for it.)
            numbers = memoryview(mmap.mmap(opened.fileno(), SIZE)).cast("q")
            self._pids, self._busy, self._runs_of = (
                numbers[part] for part in (PIDS, BUSY_UNTIL, RUNS)
            )
            self._all_busy: NDArray[np.int64] = np.frombuffer(self._busy, np.int64)
            free = (n for n, pid in enumerate(self._pids) if not _lives(pid))
            self.place = next(free, SLOTS - 1)
            self._busy[self.place] = self._runs_of[self.place] = 0
            self._pids[self.place] = os.getpid()
            # The mapping keeps the file open, and a lock with it.
            fcntl.flock(opened, fcntl.LOCK_UN)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Say that this instance runs, until the last of those that run in it is done."""
        with self._counted:
            self._runs += 1
            self._busy[self.place], self._runs_of[self.place] = RUNNING, self._runs
        try:
            yield
        finally:
            with self._counted:
                self._runs -= 1
                self._runs_of[self.place] = self._runs
                if not self._runs:
                    self._busy[self.place] = time.monotonic_ns() + LINGER_NS

    def runs(self) -> int:
        """Return how many runs there are, one for an instance that was busy just now.

        Of two that begin together both are counted by either.
        """
        return sum(self._busy_runs().values())

    def others(self) -> int:
        """Return how many of them are those of other instances."""
        return sum(runs for place, runs in self._busy_runs().items() if place != self.place)

    def _busy_runs(self) -> dict[int, int]:
        busy = np.flatnonzero(self._all_busy > time.monotonic_ns()).tolist()
        return {
            n: max(1, self._runs_of[n]) for n in busy if n == self.place or _lives(self._pids[n])
        }


def _lives(pid: int) -> bool:
    """Whether there is such a process; one that was killed is there until Triton asks for it."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115  a path costs as much again
    except PermissionError:
        return True
    except OSError:
        return False
    return True
