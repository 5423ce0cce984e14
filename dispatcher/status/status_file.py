"""Files in RUN_DIR by which one process publishes to the others: its status, or what has changed.

A status is overwritten in place and never shrinks, so that writing succeeds on a full disk as well.
A checksum tells a reader that a document is half-written: the one before it still holds then. What
has changed (`News`) is added at the end.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

SIZE = 16384  # bytes that are taken from the start
CHECKSUM = 8  # its hexadecimal digits
FRESH_S = 0.05  # every request reads
STALE_S = 20.0  # what is older comes from a process that died or hangs

T = TypeVar("T")


class StatusWriter:
    """Writes a status file, which is made where there is none.

    Raises OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the document.

        Raises OSError: it is longer than all before it, and the disk is full.
        """
        text = json.dumps(document).encode()
        size = max(SIZE, os.fstat(self.file).st_size)
        os.pwrite(self.file, (b"%08x" % zlib.crc32(text) + text).ljust(size), 0)


class StatusReader(Generic[T]):
    """Returns the newest status when it is called; the first one before there is a document.

    The file is read again after `fresh` seconds, and parsed where it has changed.
    """

    def __init__(
        self, path: Path | None, parse: Callable[[Any], T], first: T, fresh: float = FRESH_S
    ) -> None:
        self.newest = first
        self.is_own = path is None
        """Whether this process publishes the status, and sets `newest` itself."""
        self._path, self._parse, self._fresh = path, parse, fresh
        self._content, self._read_at = b"", -math.inf
        self._reading = threading.Lock()

    def __call__(self) -> T:
        if self._path and not self.is_own and self._is_due():
            # The other threads wait: what was read before may be of long ago.
            with self._reading:
                if self._is_due():
                    self._read(self._path)
        return self.newest

    def _is_due(self) -> bool:
        return time.monotonic() >= self._read_at + self._fresh

    def _read(self, path: Path) -> None:
        now = time.monotonic()
        try:
            if (found := path.read_bytes()) != self._content:
                self.newest, self._content = self._parse(document_in(found)), found
        except (OSError, ValueError):
            pass  # there is none yet, or it is half-written
        self._read_at = now


def document_in(content: bytes) -> Any:
    text = content[CHECKSUM:].rstrip(b" ")
    if zlib.crc32(text) != int(content[:CHECKSUM], 16):
        raise ValueError("its checksum is wrong")
    return json.loads(text)


class News:
    """A file to which processes add names of changed sources, a line of JSON each time.

    A line without names says that other files are to be read again. What was added before it is
    made is known to a process that starts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.followers: list[Callable[[set[str]], None]] = []
        """Called in turn with the names that were added."""
        self._read = self._size()
        self._reading = threading.Lock()

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size  # noqa: PTH116  each request asks
        except FileNotFoundError:
            return 0

    def add(self, changed: Iterable[str] = ()) -> None:
        """Have all processes take something up."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            # (After a line that a full disk has cut.)
            file.write(f"\n{json.dumps([*changed])}\n")

    def follow(self) -> None:
        """Take up what was added since the last call, if anything was.

        Other threads wait meanwhile: their requests may have come after the change.
        """
        if self._size() == self._read:
            return
        with self._reading, self.path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith(b"\n")]
            changed = set[str]()
            for line in whole:
                with suppress(ValueError):
                    changed.update(json.loads(line))
            try:
                for take_up in self.followers if whole else ():
                    take_up(changed)
            finally:  # not before: other threads would go on with what was there
                self._read += sum(map(len, whole))
