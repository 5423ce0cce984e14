"""The files in which web workers count; /metrics adds all of them up.

A worker counts in the files of its seat, a number that no other living worker has, and goes on
where the last worker of that seat has ended. The names and the layout of the files are
prometheus_client's: it maps them into a worker's memory, and the first four bytes say how many are
used. The library decides at its import whether it counts in files, so that it is not imported with
this module: gunicorn needs it before the fork.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SEAT_VARIABLE = "TRITON_DISPATCHER_SEAT"
GAUGES = "gauge_livesum_{}.db"
FILES = {
    "counter_{}.db": 2**20,
    "histogram_{}.db": 2**21,
    GAUGES: 2**16,
}
ROOM = 2**18  # for the series of new labels, of which each thread may add some at once


def clear(folder: Path) -> None:
    """Begin with an empty folder: without the counts of an earlier start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def allocate(folder: Path, seat: int) -> None:
    """Make the files of a seat at their full size, if it is the first worker's.

    A disk that is full later would kill the worker that writes into a file mapped into its memory.

    Raises OSError: there is no room.
    """
    for name, size in FILES.items():
        path = folder / name.format(seat)
        if not path.exists():
            unfinished = folder / f"{seat}.unfinished"  # whatever has its final name is read
            with unfinished.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            unfinished.rename(path)


def extend(folder: Path, seat: int) -> None:
    """Make room in a seat's files for another set of labels.

    The library would double a full file without asking the disk for room.

    Raises OSError: there is no room.
    """
    for name in ("counter_{}.db", "histogram_{}.db"):
        path = folder / name.format(seat)
        with path.open("r+b") as file:
            (used,) = struct.unpack("i", file.read(4))
            if used + ROOM > (size := path.stat().st_size):
                os.posix_fallocate(file.fileno(), 0, 2 * size)
