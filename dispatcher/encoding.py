"""JSON as every answer has it: compact, text unescaped, and never NaN or Infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def encoded(document: Any) -> tuple[str, int]:
    """Return a document as JSON, and how many numbers in it were not finite and became null.

    Raises:
        TypeError: something in it is nothing that JSON can hold.

    """
    try:
        return dumps(document), 0
    except ValueError:
        lost: list[float] = []
        return dumps(without_non_finite(document, lost)), len(lost)


def dumps(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Half of a surrogate pair, from a caller's own \\ud800, goes back as it came.
    return text.encode(errors="backslashreplace").decode()


def without_non_finite(value: Any, lost: list[float]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(value)
        return None
    if isinstance(value, dict):
        return {key: without_non_finite(one, lost) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(one, lost) for one in value]
    return value
