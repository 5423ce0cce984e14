"""Files that threads and web workers share: what one of them keeps locked, and whole JSON."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.errors import DeadlineExceeded

LOOK_S = 0.05
FILE, FOLDER = os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_DIRECTORY


class Locked(Exception):
    """Another request, or another web worker, has locked a file until the deadline."""


@contextmanager
def hold_lock(path: Path | str, kind: int, until: float = 0.0, what: int = FILE) -> Iterator[int]:
    """Lock a file, which is made where there is none, or a folder; yield its descriptor."""
    file = os.open(path, what | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Locked(path) from None
            time.sleep(LOOK_S)
        yield file
    finally:
        os.close(file)


@contextmanager
def alone(folder: Path, busy: str, until: float = math.inf) -> Iterator[None]:
    """Keep a folder, made where there is none, from all others that want it alone.

    Raises DeadlineExceeded: another one has it until the deadline, as `busy` says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(folder / "lock", fcntl.LOCK_EX, until):
            yield
    except Locked:
        raise DeadlineExceeded(busy, hint="try again in a few seconds") from None


def is_locked(path: Path, what: int = FILE) -> bool:
    """Whether a web worker keeps a file or a folder locked."""
    try:
        with hold_lock(path, fcntl.LOCK_SH, what=what):
            return False
    except Locked:
        return True


def read_json(file: Path) -> dict[str, Any] | None:
    """Return the object in a file; `None` where there is none, or where it is not whole."""
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a file that others see whole or not at all."""
    part = file.with_suffix(f".{uuid.uuid4().hex}")
    part.write_text(json.dumps(document), encoding="utf-8")
    part.rename(file)
