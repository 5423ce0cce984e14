"""Sizes in bytes, read and written in words."""

from __future__ import annotations

import argparse
import re

SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
STEP = 1024


def size(text: str) -> int:
    """Read 4g as bytes."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.lower())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; expected one such as 500m or 4g")
    return int(match[1]) * SIZES[match[2]]


def size_text(count: float) -> str:
    """Return bytes in words, such as 1.5 MB; a MB has 2**20 bytes."""
    if count < STEP:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB"):
        count /= STEP
        if count < STEP:
            return f"{count:.1f} {unit}"
    return f"{count / STEP:.1f} GB"
