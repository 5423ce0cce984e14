"""The lines of the log: a JSON object, or a text after its program's name.

Every program's lines are made here, so that nothing in them can pass for another line: a text
stays in its line, and what would move a terminal's cursor, or hide text, is written as an escape.
"""

from __future__ import annotations

import json
import os
import re
import select
from collections.abc import Mapping
from datetime import UTC, datetime

# Names the file to which a web worker writes finished lines. What its code prints goes elsewhere,
# and is a text like any other.
FINISHED = "TRITON_DISPATCHER_LOG"
STDERR = 2

MAX_TEXT = 200  # of a method, a path, a message
BUG = 500

# Control characters but for tabs, line separators, marks of direction, and half surrogate pairs.
HIDDEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


def find_descriptor() -> int:
    """Return the number of the file to which this process writes finished lines."""
    return int(os.environ.get(FINISHED, STDERR))


def json_line(line: Mapping[str, object]) -> bytes:
    """Return a record as a line; all of it is ASCII."""
    return json.dumps(line).encode() + b"\n"


def message_line(program: str, level: str, message: str, at: float, **more: str) -> bytes:
    line = {"time": timestamp(at), "program": program, "level": level, **more, "message": message}
    return json_line(line)


def text_lines(program: str, text: str) -> bytes:
    """Return a text after the program's name; what follows its first line is indented."""
    lines = text.split("\n")
    shown = "\n  ".join(HIDDEN.sub(lambda found: ascii(found[0])[1:-1], one) for one in lines)
    return f"{program}: {shown}".replace("\n", f"\n{program}: ").encode() + b"\n"


def write_all(file: int, text: bytes) -> bool:
    """Write a text, however long that takes; return whether the file has a reader."""
    while text:
        try:
            text = text[os.write(file, text) :]
        except BlockingIOError:  # another program has made the file non-blocking
            select.select([], [file], [])
        except OSError:
            return False  # that is no reason to stop serving
    return True


def level_of_status(status: int) -> str:
    """Return the level of a response: error only for a bug."""
    if status == BUG:
        return "error"
    return "warning" if status > BUG else "info"


def timestamp(seconds: float) -> str:
    """Format seconds since 1970 for the log."""
    at = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")
