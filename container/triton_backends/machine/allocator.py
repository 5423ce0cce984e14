"""The memory of this process."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return to the system what was freed since the start.

    ONNX Runtime reads a file whole and repacks its weights for the processor, and glibc keeps
    what both leave free: ResNet-50's process has 160 MB (RSS) after this and 344 MB without.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others need not
    if trim is not None:
        trim(0)
