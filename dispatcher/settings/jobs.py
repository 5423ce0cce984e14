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
        "asynchronous requests (Prefer: respond-async) that may wait or run, over all workers; "
        "further ones are answered 429; 0 means that all are answered synchronously")
    jobs_dir: Path | None = setting("JOBS_DIR", "", read.or_nothing(read.path),
        "folder for asynchronous requests and their results, which are there after a restart too; "
        "nothing means a folder in RUN_DIR, which is removed at the end")
    jobs_disk_mb: int = setting("JOBS_DISK_MB", "1024", read.whole(1, 2**20),
        "disk for bodies and results of asynchronous requests, in MiB; while it is full, further "
        "ones are answered 429")
    jobs_keep: float = setting("JOBS_KEEP", "3600", read.seconds(1, 31_536_000),
        "seconds for which an asynchronous request that has ended is kept, with its result")
    # fmt: on
