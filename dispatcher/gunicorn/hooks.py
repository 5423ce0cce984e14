"""gunicorn's configuration, as far as its command line has no words for it."""

from __future__ import annotations

import math
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTIFY_S = 1.0

# gunicorn looks at its workers once a second. Where it comes so late its container was frozen, with
# all workers, and as long afterwards they may take to give a sign of life.
FROZEN_S = 5.0

# Where each worker keeps its counts, in files mapped into its memory: named and laid out by
# prometheus_client, which begins with how many bytes are used. (It is not imported here, for it
# decides at its import where it counts.)
METRICS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
FILES = {"counter_{}.db": 2**20, "histogram_{}.db": 2**21, "gauge_livesum_{}.db": 2**16}


def on_starting(server: Any) -> None:
    """Begin to count from nothing: the files of an earlier start are nobody's.

    Workers that were frozen together with gunicorn are not ended for their silence.
    """
    server.murder_workers = skip_after_freeze(server.murder_workers)
    folder = Path(os.environ[METRICS_DIR_VARIABLE])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def skip_after_freeze(
    look: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Return what does as `look`, but not soon after it could not be called for a while."""
    looked, woke = clock(), -math.inf

    def look_while_awake() -> None:
        nonlocal looked, woke
        before, looked = looked, clock()
        if looked - before > FROZEN_S:
            woke = looked
        if looked - woke > FROZEN_S:
            look()

    return look_while_awake


def post_fork(server: Any, worker: Any) -> None:
    """Give signs of life while a worker is made: tokenizers and clients may take their time."""

    def give_signs() -> None:
        while not worker.booted:
            worker.notify()
            time.sleep(NOTIFY_S)

    threading.Thread(target=give_signs, daemon=True).start()
    try:
        allocate_files(Path(os.environ[METRICS_DIR_VARIABLE]), worker.pid)
    except OSError as error:
        server.log.warning("a worker counts for itself alone: %s", error)
        del os.environ[METRICS_DIR_VARIABLE]


def allocate_files(folder: Path, pid: int) -> None:
    """Make a worker's files: where the disk is full later, writing into them kills nobody."""
    for name, size in FILES.items():
        unfinished = folder / f"{pid}.unfinished"  # the others read whatever has its final name
        with unfinished.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        unfinished.rename(folder / name.format(pid))


def child_exit(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's signature
    """Take out what a worker had in flight; what it has counted stays, without the unused room."""
    for name in FILES:
        path = Path(os.environ[METRICS_DIR_VARIABLE]) / name.format(worker.pid)
        try:
            (used,) = struct.unpack("i", path.read_bytes()[:4])
            if name.startswith("gauge") or not used:
                path.unlink()
            else:
                os.truncate(path, used)
        except OSError:
            continue  # it had none
