"""API keys with a scope: inference, or management of models.

A file has a line of three words per key; empty lines and comments (`#`) are skipped:

    inference   shop  e9dcf27f8a06…
    management  ops   4c1d92e07b35…

its scope, its owner and its SHA-256. A slow hash, as for passwords, would add no protection: a key
has 256 random bits, too many to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.files import explain_denial, text_of

log = logging.getLogger(__name__)

INFERENCE = "inference"
MANAGEMENT = "management"
SCOPES = (INFERENCE, MANAGEMENT)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAMED = "1 to 64 letters, digits and ._-, the first a letter or a digit"
DIGEST = re.compile(r"[0-9a-f]{64}")

CHECK_S = 1.0  # between two checks whether the file has changed


class BadKeys(ValueError):
    """The file of keys cannot be used; the message names the line."""


@dataclass(frozen=True)
class Key:
    """An accepted key."""

    scope: str  # inference or management
    name: str  # its owner, for the log
    digest: bytes  # SHA-256 of its text, 32 bytes


def read_keys(text: str) -> tuple[Key, ...]:
    """Read the lines of a file."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if (
            len(words) != 3
            or words[0] not in SCOPES
            or not NAME.fullmatch(words[1])
            or not DIGEST.fullmatch(words[2])
        ):
            # The line itself is not shown: it may contain a key by mistake.
            raise BadKeys(
                f"line {number} is no key; expected `inference` or `management`, a name of "
                f"{NAMED}, and the SHA-256 of the key in 64 small hexadecimal digits"
            )
        keys.append(Key(words[0], words[1], bytes.fromhex(words[2])))
    if not keys:
        raise BadKeys("it has no key; expected at least one line")
    return tuple(keys)


def load_keys(path: Path) -> tuple[Key, ...]:
    """Read a file."""
    try:
        return read_keys(text_of(path))
    except OSError as error:
        raise BadKeys(f"it cannot be read: {error.strerror}{explain_denial(path)}") from error
    except UnicodeDecodeError as error:
        raise BadKeys("it is no text") from error


def new_key(scope: str, name: str) -> tuple[str, str]:
    """Return a new key, and the line for the file."""
    key = secrets.token_hex(32)  # of a URL-safe key the first character may be `-`
    return key, f"{scope} {name} {hashlib.sha256(key.encode()).hexdigest()}"


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
        self._seen = self._signature()
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
        signature = self._signature()
        if signature != self._seen:
            self._seen = signature
            self._read()

    def _signature(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

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
        lines = [f"{key.scope} {key.name} {key.digest.hex()}\n" for key in self._keys]
        unfinished = self.kept.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # no room: the copy stays outdated
            unfinished.write_text("".join(lines), encoding="utf-8")
            unfinished.rename(self.kept)
