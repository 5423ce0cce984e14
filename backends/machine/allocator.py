"""The memory of this process."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

UNUSUAL = 4
"""Times the usual size of inputs from which on a run's memory is given back. It is taken again from
the system each time, for which a YOLOv5s on ONNX Runtime needs 12 to 18 % of a run."""
LATEST = 1 / 16
"""What the latest run counts in the mean of all."""
WORTHWHILE = 128 * 2**20
"""Bytes from which on OpenVINO gives memory back, for which it prepares its graph once more."""


class Sizes:
    """The sizes of the inputs of a session, whose engine keeps memory for the largest."""

    def __init__(self) -> None:
        self._usual = self._largest = 0.0

    def shrinks(self, inputs: Mapping[str, NDArray[Any]]) -> bool:
        """Whether the engine keeps much more than such runs need, or will after this one."""
        size = sum(array.nbytes for array in inputs.values())
        self._usual += (size - self._usual) * (LATEST if self._usual else 1)
        self._largest = max(self._largest, size)
        if self._largest <= UNUSUAL * self._usual:
            return False
        self._largest = self._usual
        return True


def resident() -> int:
    """Return the bytes of memory that are this process's alone, as Linux counts them."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text("ascii").split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Return to the system what was freed since the start.

    ONNX Runtime reads a file whole and repacks its weights for the processor, and glibc keeps
    what both leave free: ResNet-50's process has 160 MB (RSS) after this and 344 MB without.
    """
    if trim := _of_libc("malloc_trim"):
        trim(0)


def forget(file: Path) -> None:
    """Drop a mapped file from this process's memory; later reads come from the disk."""
    if not (madvise := _of_libc("madvise")):
        return
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    mapped = rf"(?m)^(\w+)-(\w+) r\S+ .*{re.escape(str(file))}(?: \(deleted\))?$"
    for begin, end in re.findall(mapped, maps):
        start = int(begin, 16)
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(int(end, 16) - start), mmap.MADV_DONTNEED)


def _of_libc(name: str) -> Any:
    # glibc has these functions, others need not.
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
