"""A model in OpenVINO's own format, whose weights are mapped instead of read."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from container.triton_backends.model_config import files_of

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS = ".bin"
"""The suffix of the file beside `model.xml` that has the weights."""

LOOK_S = 0.02  # between two looks at whether another instance has made the file


class MappedFile:
    """A model in OpenVINO's own format, made once for all instances that have it open.

    Weights of ONNX files are read into each process's own memory; those of IR are mapped, are there
    once for all processes, and need not stay in memory once they are packed for the processor.

    Args:
        shared: the folder for what is made; None makes nothing.
        save: writes a model (the first path) in that format (the second).

    """

    def __init__(self, file: Path, shared: Path | None, save: Callable[[Path, Path], None]) -> None:
        self.file = file
        self._lock: int | None = None
        if shared is None or file.suffix == ".xml":
            return
        known = [
            (str(f), s.st_size, s.st_mtime_ns, s.st_ino) for f in files_of(file) if (s := f.stat())
        ]
        self._made = made = (
            shared / "ir" / f"{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.xml"
        )
        try:
            made.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(made.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            _lock_shared(self._lock, made, lambda: save(file, made))
        except OSError as error:
            self.close()
            sys.stderr.write(f"the weights of '{file}' are not mapped: {error}\n")
        else:
            self.file = made

    def forget(self) -> None:
        """Take the weights out of this process's memory; see `forget`."""
        forget(self.file.with_suffix(WEIGHTS))

    def close(self) -> None:
        """Remove the file unless another instance has it open; keep its lock."""
        if self._lock is None:
            return
        import fcntl  # noqa: PLC0415  Windows has none

        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # another one has it open
        else:
            for made in (self._made, self._made.with_suffix(WEIGHTS)):
                made.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def _lock_shared(lock: int, made: Path, make: Callable[[], None]) -> None:
    """Take a shared lock once a file exists.

    Linux releases a lock before it grants one of the other kind, so the file is checked each time.
    Nothing waits for the exclusive lock: an instance that made the file meanwhile keeps its shared
    one for as long as it has the model open.
    """
    import fcntl  # noqa: PLC0415  Windows has none

    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if made.exists():
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
            continue
        if not made.exists():
            make()


def forget(weights: Path) -> None:
    """Drop a mapped file from memory; later reads come from the disk.

    Weights are packed for the processor when a model is compiled, or runs first, and mostly not
    read from there any more.
    """
    if sys.platform != "linux" or not weights.exists():
        return
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for begin, end in re.findall(rf"(?m)^(\w+)-(\w+) r\S+ .*{re.escape(str(weights))}$", maps):
        start = int(begin, 16)
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(int(end, 16) - start), mmap.MADV_DONTNEED)
