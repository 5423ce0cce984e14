"""How files are read that people write by hand and pack, whatever their system adds to them."""

from __future__ import annotations

import codecs
import fcntl
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LITTER = frozenset({"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"})
"""What systems leave in folders, besides names that begin with a dot: `._1`, `.DS_Store`."""


def is_litter(path: Path) -> bool:
    """Whether a file or folder was left by a system or an editor, and is no part of a model."""
    return path.name.startswith(".") or path.name in LITTER


def unmarked(content: bytes) -> bytes:
    """Return the content of a text file as UTF-8 without a byte order mark.

    Editors of Windows write one, also before UTF-16.

    Raises:
        UnicodeDecodeError: it begins as UTF-16 and is none.

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
    """Lock a file; return whether nobody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
