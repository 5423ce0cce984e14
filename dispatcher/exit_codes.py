"""Exit codes in words."""

from __future__ import annotations

from signal import Signals


def in_words(code: int) -> str:
    """Return an exit code in words; signals are negative, as `subprocess` has them."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return Signals(-code).name
    except ValueError:  # most of the real-time ones have no name
        return f"signal {-code}"
