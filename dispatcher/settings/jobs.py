"""The settings of asynchronous requests, a part of the one table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """How many jobs are accepted, where they are, and for how long."""

    # fmt: off
    jobs_queue: int = setting("JOBS_QUEUE", "1000", read.whole(0, 100_000),
        "asynchronous requests that may wait or run before 429; 0: none are asynchronous")
    jobs_dir: Path | None = setting("JOBS_DIR", "", read.or_nothing(read.path),
        "folder for them and their results, which then survive a restart")
    jobs_disk_mb: int = setting("JOBS_DISK_MB", "1024", read.whole(1, 2**20),
        "MiB for their bodies and results, before 429")
    jobs_keep: float = setting("JOBS_KEEP", "3600", read.seconds(1, 31_536_000),
        "seconds for which one that has ended is kept")
    # fmt: on
