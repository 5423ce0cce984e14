"""Reads files that people write and pack, on whatever operating system."""

from __future__ import annotations

import codecs
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LITTER = frozenset({"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"})
"""Names that systems leave in folders, besides those with a dot: `._1`, `.DS_Store`."""


def is_litter(path: Path) -> bool:
    """Whether a file or folder comes from a system or an editor, not from an author."""
    return path.name.startswith(".") or path.name in LITTER


def unmarked(content: bytes) -> bytes:
    """Return the content of a text file as UTF-8 without a byte order mark.

    Editors on Windows write one, before UTF-16 too.

    Raises:
        UnicodeDecodeError: it has the mark of UTF-16, but is not UTF-16.

    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def text_of(path: Path) -> str:
    r"""Return the text of a file: UTF-8 or marked UTF-16, whose lines end with `\n`.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is neither.

    """
    text = unmarked(path.read_bytes()).decode()
    return text.replace("\r\n", "\n").replace("\r", "\n")


def locked(file: IO[str]) -> bool:
    """Lock a file; return false if another process has locked it."""
    import fcntl  # noqa: PLC0415  Windows has none

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
