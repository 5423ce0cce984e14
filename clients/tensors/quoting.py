"""How a caller's own values are shown back in an error: in short, and never so that it breaks."""

from __future__ import annotations


def brief(value: object, longest: int = 60) -> str:
    """Return how a value is shown to the caller: its beginning where it is long."""
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list) and any(isinstance(one, list | dict) for one in value[:longest]):
        return f"a list of {len(value)} lists or objects"  # however deep they are
    shown = ascii_if_broken(repr(value[: longest + 1] if isinstance(value, str | list) else value))
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def encodable(text: str) -> bool:
    """Whether a text is one: JSON can hold half of a surrogate pair, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def ascii_if_broken(text: str) -> str:
    return text if encodable(text) else ascii(text)
