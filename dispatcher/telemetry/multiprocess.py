"""The files in which web workers count; /metrics adds all of them up.

Their names and their layout are prometheus_client's: it maps them into a worker's memory, and the
first four bytes say how many are used. The library decides at its import whether it counts in
files, so that it is not imported with this module: gunicorn needs it before the fork.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
FILES = {
    "counter_{}.db": 2**20,
    "histogram_{}.db": 2**21,
    "gauge_livesum_{}.db": 2**16,
    "gauge_liveall_{}.db": 2**16,
}
ROOM = 2**18  # for the series of new labels, of which each thread may add some at once
TRIES = 5


def clear(folder: Path) -> None:
    """Begin with an empty folder: without the counts of an earlier start."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def allocate(folder: Path, pid: int) -> None:
    """Make a worker's files at their full size.

    A disk that is full later would kill the worker that writes into a file mapped into its memory.

    Raises:
        OSError: there is no room.

    """
    for name, size in FILES.items():
        unfinished = folder / f"{pid}.unfinished"  # whatever has its final name is read
        with unfinished.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        unfinished.rename(folder / name.format(pid))


def extend(folder: Path, pid: int) -> None:
    """Make room in a worker's files for another set of labels.

    The library would double a full file without asking the disk for room.

    Raises:
        OSError: there is no room.

    """
    for name in ("counter_{}.db", "histogram_{}.db"):
        path = folder / name.format(pid)
        if used_bytes(path) + ROOM > (size := path.stat().st_size):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, 2 * size)


def retire(folder: Path, pid: int) -> None:
    """Remove a dead worker's gauges; trim the files of its counts."""
    for name in FILES:
        path = folder / name.format(pid)
        try:
            if name.startswith("gauge") or not used_bytes(path):
                path.unlink()
            else:
                os.truncate(path, used_bytes(path))
        except OSError:
            continue  # it had none


def merge_dead_workers(folder: Path) -> None:
    """Add up the counts of dead workers in one file of each kind.

    With one file for every dead worker, /metrics would become slow.

    Raises:
        OSError: there is no room.

    """
    with (folder / "gathering").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another worker does it
        for kind in ("counter", "histogram"):
            files = folder.glob(f"{kind}_[0-9]*.db")
            dead = [path for path in files if not Path("/proc", path.stem.split("_")[1]).exists()]
            if dead:
                _merge(dead, folder / f"{kind}_dead.db")


def used_bytes(path: Path) -> int:
    """Return how many bytes of a file are used, its header included."""
    with path.open("rb") as file:
        return int(struct.unpack("i", file.read(4))[0])


def _merge(dead: Sequence[Path], merged: Path) -> None:
    from prometheus_client.mmap_dict import MmapedDict  # noqa: PLC0415  see above

    sources = [*dead, *([merged] if merged.exists() else [])]
    totals: defaultdict[str, float] = defaultdict(float)
    for path in sources:
        for key, value, *_ in MmapedDict.read_all_values_from_file(path):  # type: ignore[no-untyped-call]
            totals[key] += value
    unfinished = merged.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        # Allocated first: a full disk would end the process that writes to the mapped file.
        os.posix_fallocate(file.fileno(), 0, sum(path.stat().st_size for path in sources))
    written = MmapedDict(str(unfinished))  # type: ignore[no-untyped-call]
    for key, value in totals.items():
        written.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    written.close()  # type: ignore[no-untyped-call]
    os.truncate(unfinished, used_bytes(unfinished))
    unfinished.rename(merged)
    for path in dead:
        path.unlink()


def read_consistent(folder: Path, read: Callable[[], bytes]) -> bytes:
    """Return what `read` makes of all files; repeat it after a merge meanwhile."""
    for left in reversed(range(TRIES)):
        before = list_files(folder)
        try:
            page = read()
        except FileNotFoundError:
            if not left:
                raise
            continue
        if list_files(folder) == before:
            break
    return page


def list_files(folder: Path) -> set[tuple[str, int]]:
    """Return names and inodes, which change where a file comes, goes or is replaced."""
    return {(entry.name, entry.inode()) for entry in os.scandir(folder)}
