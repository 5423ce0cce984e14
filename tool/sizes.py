"""Sizes in bytes, in words."""

from __future__ import annotations

STEP = 1024


def size_text(count: float) -> str:
    """Return bytes in words, such as 1.5 MB; a MB has 2**20 bytes."""
    if count < STEP:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB"):
        count /= STEP
        if count < STEP:
            return f"{count:.1f} {unit}"
    return f"{count / STEP:.1f} GB"
