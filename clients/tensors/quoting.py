"""Quotes a caller's own values in an error message: short, and always as UTF-8."""

from __future__ import annotations

import json

from clients.errors import BadPayload

LONGEST = 60  # characters, or elements that are looked at


def brief(value: object) -> str:
    """Return a value as it is quoted to the caller: only the beginning of a long one."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list) and any(isinstance(one, list | dict) for one in value[:LONGEST]):
        return f"a list of {len(value)} lists or objects"  # the depth is the caller's
    shown = repr(value[: LONGEST + 1] if isinstance(value, str | list) else value)
    shown = shown if encodable(shown) else ascii(shown)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def unexpected(name: str, value: object, expected: str) -> BadPayload:
    """Return the error for a value that came in place of what is expected."""
    return BadPayload(f"`{name}` is {brief(value)}", hint=f"expected {expected}")


def encodable(text: str) -> bool:
    """Whether UTF-8 can hold a text: JSON allows half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
