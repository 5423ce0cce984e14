"""Reads files that people write and pack, on whatever operating system."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

LITTER = frozenset({"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"})
"""Names that systems leave in folders, besides those with a dot: `._1`, `.DS_Store`."""


Mark: TypeAlias = Mapping[str, str]
"""The state of files by path: it differs when one was changed."""


def is_litter(path: Path) -> bool:
    """Whether a file or folder comes from a system or an editor, not from an author."""
    return path.name.startswith(".") or path.name in LITTER


def strip_mark(content: bytes) -> bytes:
    """Return the content of a text file as UTF-8 without a byte order mark.

    Editors on Windows write one, before UTF-16 too.
    Raises UnicodeDecodeError: it has the mark of UTF-16, but is not UTF-16.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def text_of(path: Path) -> str:
    r"""Return the text of a file: UTF-8 or marked UTF-16, whose lines end with `\n`.

    Raises OSError: it cannot be read; UnicodeDecodeError: it is neither.
    """
    text = strip_mark(path.read_bytes()).decode()
    return text.replace("\r\n", "\n").replace("\r", "\n")


def explain_denial(path: Path, mode: int = os.R_OK) -> str:
    """Say why this process may not use a path: whose it is, and how to mend that.

    Returns:
        a text that follows on a sentence; empty where permissions are not the reason.

    """
    place = status = None
    for one in (*reversed(path.parents), path):
        try:
            place, status = one, one.stat()
        except OSError as error:
            if mode == os.R_OK and not isinstance(error, PermissionError):
                return ""
            break
    if place is None or status is None or os.access not in os.supports_effective_ids:  # Windows
        return ""
    wanted = mode | (os.X_OK if stat.S_ISDIR(status.st_mode) else 0)
    if os.access(place, wanted, effective_ids=True):
        return ""
    return (
        f"; '{place}' belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):o}), and "
        f"this runs as user {os.geteuid()}: `chown` or `chmod -R u+rwX` what is mounted there, or "
        f"run the container as user {status.st_uid} (`--user {status.st_uid}`)"
    )


def exists(path: Path | str) -> bool:
    """Whether something is there; Path's own method raises where a name is too long."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path | str) -> bool:
    """Whether a file is there; Path's method raises too in a folder without access."""
    return os.path.isfile(path)  # noqa: PTH113


def mark_files(files: Iterable[Path]) -> Mark:
    return {str(path): state for path in files if (state := file_mark(path))}


def file_mark(path: Path) -> str:
    """Return a text that changes with a file; empty for Python's own cache."""
    if "__pycache__" in path.parts:
        return ""
    try:
        found = path.stat()
    except (OSError, ValueError):  # it is being replaced, or the name can be no path
        return "gone"
    state = f"{found.st_ino}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_size}"
    return "" if stat.S_ISDIR(found.st_mode) else state
