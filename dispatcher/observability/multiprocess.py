"""Counts of web workers that are gone, in one file of each kind: /metrics reads all that there are.

Each worker counts in files of its own, which the library maps into its memory. Those of a dead one
would stay, and a page of five hundred take a second.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

TRIES = 5


def merge_dead_workers(folder: Path) -> None:
    """Add what dead workers have counted together: /metrics reads every file that there is.

    Raises:
        OSError: there is no room.

    """
    with (folder / "gathering").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another worker is at it
        for kind in ("counter", "histogram"):
            dead = [path for path in folder.glob(f"{kind}_[0-9]*.db") if is_dead(path)]
            if dead:
                _add(dead, folder / f"{kind}_dead.db")


def is_dead(path: Path) -> bool:
    """Whether the worker is gone whose file this is."""
    return not Path("/proc", path.stem.rpartition("_")[2]).exists()


def _add(dead: Sequence[Path], together: Path) -> None:
    sources = [*dead, *([together] if together.exists() else [])]
    totals: defaultdict[str, float] = defaultdict(float)
    for path in sources:
        for key, value, *_ in MmapedDict.read_all_values_from_file(path):  # type: ignore[no-untyped-call]
            totals[key] += value
    unfinished = together.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        # Taken now: room that is missing when it is written to ends the process.
        os.posix_fallocate(file.fileno(), 0, sum(path.stat().st_size for path in sources))
    written = MmapedDict(str(unfinished))  # type: ignore[no-untyped-call]
    for key, value in totals.items():
        written.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
    written.close()  # type: ignore[no-untyped-call]
    (used,) = struct.unpack("i", unfinished.read_bytes()[:4])
    os.truncate(unfinished, used)
    unfinished.rename(together)
    for path in dead:
        path.unlink()


def read_consistent(folder: Path, read: Callable[[], bytes]) -> bytes:
    """Return what `read` reads of all files, once more where some were gathered meanwhile."""
    for left in reversed(range(TRIES)):
        before = files(folder)
        try:
            page = read()
        except FileNotFoundError:
            if not left:
                raise
            continue
        if files(folder) == before:
            break
    return page


def files(folder: Path) -> set[tuple[str, int]]:
    """Return what tells whether a file came, went or was replaced."""
    return {(entry.name, entry.inode()) for entry in os.scandir(folder)}
