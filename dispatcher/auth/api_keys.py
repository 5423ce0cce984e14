"""API keys with a scope, inference or management of models, and with limits.

A file has a line per key; empty lines and comments (`#`) are skipped:

    inference   shop  e9dcf27f8a06…
    inference   app   77ab01c9d2e4…  models=resnet,yolov5 per_minute=600 concurrent=4
    management  ops   4c1d92e07b35…

its scope, its owner, its SHA-256, and what it is limited to. A slow hash, as for passwords, would
add no protection: a key has 256 random bits, too many to guess.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import math
import os
import re
import secrets
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.files import explain_denial, file_mark, text_of
from dispatcher.errors import KeyLimit, ModelForbidden
from dispatcher.locks import FILE, Locked, hold_lock

log = logging.getLogger(__name__)

INFERENCE = "inference"
MANAGEMENT = "management"
SCOPES = (INFERENCE, MANAGEMENT)
LINE = re.compile(
    "(inference|management) ([A-Za-z0-9][A-Za-z0-9_.-]{0,63}) ([0-9a-f]{64})"
    r"(?: models=([^\s,*]+(?:,[^\s,*]+)*))?"
    "(?: per_minute=([1-9][0-9]{0,5}))?(?: concurrent=([1-9][0-9]{0,2}))?"
)
EXPECTED = (
    "expected `inference` or `management`, a name of 1 to 64 letters, digits and ._-, the first a "
    "letter or a digit, and the SHA-256 of the key in 64 small hexadecimal digits; for `inference` "
    "then, if wanted and in this order, models=NAME,NAME per_minute=1…999999 concurrent=1…999"
)

MINUTE_S = 60.0
ROUNDING_S = 1e-6

CHECK_S = 1.0  # between two checks whether the file has changed


class BadKeys(ValueError):
    """The file of keys cannot be used; the message names the line."""


@dataclass(frozen=True)
class Key:
    """An accepted key."""

    scope: str  # inference or management
    name: str  # its owner, for the log
    digest: bytes  # SHA-256 of its text, 32 bytes
    models: tuple[str, ...] = ()  # the only ones that it may ask, by name or alias; empty: all
    per_minute: int = 0  # requests that ask models, in each minute; 0: any number
    concurrent: int = 0  # of them at a time; 0: any number
    line: str = ""  # of the file, with single spaces


def read_keys(text: str) -> tuple[Key, ...]:
    """Read the lines of a file."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        found = LINE.fullmatch(" ".join(words))
        if not found or (found[1] == MANAGEMENT and len(words) > 3):
            # The line itself is not shown: it may contain a key by mistake.
            raise BadKeys(f"line {number} is no key; {EXPECTED}")
        models = tuple(found[4].split(",")) if found[4] else ()
        limits = int(found[5] or 0), int(found[6] or 0)
        keys.append(Key(found[1], found[2], bytes.fromhex(found[3]), models, *limits, found[0]))
    if not keys:
        raise BadKeys("it has no key; expected at least one line")
    return tuple(keys)


def load_keys(path: Path) -> tuple[Key, ...]:
    try:
        return read_keys(text_of(path))
    except OSError as error:
        raise BadKeys(f"it cannot be read: {error.strerror}{explain_denial(path)}") from error
    except UnicodeDecodeError as error:
        raise BadKeys("it is no text") from error


def new_key(scope: str, name: str, *limits: str) -> tuple[str, str]:
    """Return a new key, and the line for the file; raise BadKeys where it would be wrong."""
    key = secrets.token_hex(32)  # of a URL-safe key the first character may be `-`
    line = " ".join((scope, name, hashlib.sha256(key.encode()).hexdigest(), *limits))
    read_keys(line)
    return key, line


@dataclass(frozen=True)
class ModelList:
    """The only models that a key may ask."""

    key: str  # its name
    names: frozenset[str]
    name_of: Callable[[str], str]  # returns the name of a model for its name or alias

    def __contains__(self, asked: str) -> bool:
        return self.name_of(asked) in self.names

    def check(self, asked: str) -> None:
        """Refuse another model."""
        if asked not in self:
            which = "all models" if asked == "*" else f"the model {asked[:100]!r}"
            raise ModelForbidden(
                f"the key of {self.key!r} is not for {which}",
                hint=f"it may ask {', '.join(sorted(self.names))}",
            )


@dataclass
class KeyLimits:
    """Counts the requests of each key in files, by its name, over all web workers.

    The kernel releases the locks of a worker that dies.
    """

    folder: Path  # which is made for the first request of a key with such a limit

    def enter(self, key: Key) -> ExitStack:
        """Count a request; return what it holds until it is answered.

        Raises KeyLimit: the key has used up one of its limits.
        """
        if key.concurrent or key.per_minute:
            self.folder.mkdir(exist_ok=True)
        with ExitStack() as held:
            if key.concurrent:
                self._take_place(key, held)
            if key.per_minute:
                self._count(key)
            return held.pop_all()

    def _take_place(self, key: Key, held: ExitStack) -> None:
        """Lock one of as many files as there may be requests at a time."""
        for number in range(key.concurrent):
            with suppress(Locked):
                held.enter_context(hold_lock(self.folder / f"{key.name} {number}", fcntl.LOCK_EX))
                return
        raise KeyLimit(key.name, f"{key.concurrent} requests at a time", "concurrent", 1)

    def _count(self, key: Key) -> None:
        """Note until when the requests so far use up the rate; a minute's may come together.

        (The algorithm is known as GCRA, of ITU-T I.371.)
        """
        file = os.open(self.folder / f"{key.name} per_minute", FILE | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # which others hold for microseconds
            now = time.monotonic()  # the same in all processes
            (until,) = struct.unpack("d", os.pread(file, 8, 0) or bytes(8))
            until = max(until, now) + MINUTE_S / key.per_minute
            if (wait := until - now - MINUTE_S) > ROUNDING_S:
                most = f"{key.per_minute} requests a minute"
                raise KeyLimit(key.name, most, "per_minute", math.ceil(wait))
            os.pwrite(file, struct.pack("d", until), 0)
        finally:
            os.close(file)


class KeyFile:
    """The keys of a file, read again when it changes.

    Where the new file cannot be used, the previous keys stay valid and `fault` says why. A copy of
    the last good file is kept for processes that start later.
    """

    def __init__(
        self, path: Path, kept: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.kept = kept
        self.clock = clock
        self.fault = ""
        self._keys: tuple[Key, ...] = ()
        self._seen = file_mark(path)
        self._look_at = clock() + CHECK_S
        self._read()
        if not self._keys:
            raise BadKeys(self.fault)

    def matching(self, text: str) -> list[Key]:
        """Return the keys that a text matches.

        All keys are compared, in a time that does not depend on the text.
        """
        self._look()
        digest = hashlib.sha256(text.encode("latin-1", "replace")).digest()
        return [key for key in self._keys if hmac.compare_digest(key.digest, digest)]

    def _look(self) -> None:
        now = self.clock()
        if now < self._look_at:
            return
        self._look_at = now + CHECK_S
        if (mark := file_mark(self.path)) != self._seen:
            self._seen = mark
            self._read()

    def _read(self) -> None:
        try:
            self._keys, self.fault = load_keys(self.path), ""
        except BadKeys as error:
            self.fault = str(error)
            if self.kept is not None:
                with suppress(BadKeys):
                    self._keys = load_keys(self.kept)
        if self.fault:
            log.error("%s: %s; the previous keys stay valid", self.path, self.fault)
        else:
            log.info("%s has %d keys", self.path, len(self._keys))
            self._keep()

    def _keep(self) -> None:
        if self.kept is None:
            return
        lines = [f"{key.line}\n" for key in self._keys]
        unfinished = self.kept.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # no room: the copy stays outdated
            unfinished.write_text("".join(lines), encoding="utf-8")
            unfinished.rename(self.kept)
