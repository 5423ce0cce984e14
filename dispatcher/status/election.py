"""Which web worker probes: the one that holds a lock on a file, until it ends; and its threads."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

LOCK = "prober.lock"

log = logging.getLogger(__name__)


class Election:
    """The part of one process in the election.

    Args:
        run_dir: the folder that the workers share; `None` where this one is alone.

    """

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._lock: int | None = None

    def is_won(self) -> bool:
        """Whether this process is the one; the first that asks is."""
        if self._run_dir is None or self._lock is not None:
            return True
        lock = os.open(self._run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # unlike flock, this lock is not inherited by a process that a class forks
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(lock)
            return False
        self._lock = lock
        return True

    def leave(self) -> None:
        """Let another process take over."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def go_on(work: Callable[[], None], pause: float) -> None:
    """Do some work for ever, with a pause in between."""
    while True:
        try:
            work()
        except Exception:
            log.exception("a round of the prober failed")
        time.sleep(pause)
