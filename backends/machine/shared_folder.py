"""The folder that all model instances of one container share, and the files in it."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VARIABLE = "MODEL_INSTANCES_DIR"
"""The variable that names the folder; without it each instance is by itself."""


def find_shared_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder, if there is one."""
    folder = environment.get(VARIABLE)
    return Path(folder) if folder else None


@contextmanager
def hold_lock(file: Path) -> Iterator[None]:
    """Hold a lock among processes, by a file that is made where it is missing."""
    import fcntl

    with file.open("a", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, and do nothing where that fails."""
    part = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content), encoding="utf-8")
        part.replace(file)
    with suppress(OSError):
        part.unlink(missing_ok=True)


def read_json(file: Path) -> Any:
    """Return what is in a JSON file; nothing where there is none, or it is damaged."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def digest_files(files: Iterable[Path], *words: object) -> str:
    """Return a digest of files, with their names, and of what else a result depends on."""
    digest = hashlib.sha256(repr(words).encode())
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:32]
