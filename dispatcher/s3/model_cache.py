"""Copies of models in S3, on disk: each whole, or not there at all.

The folder of a copy is named by the model and by what S3 says of its objects, so a model that has
changed gets another folder. Its files are downloaded into a hidden folder, checked, and appear all
together, by a rename. What has not changed is linked from an older copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from clients.errors import DeadlineExceeded
from clients.model_files.model_folders import CONFIG, NAME, PLAIN_MODELS
from dispatcher.errors import OutOfMemory, StorageFailed, StorageUnavailable
from dispatcher.locks import FOLDER, Locked, hold_lock, is_locked
from dispatcher.s3.client import S3, Location, StoredObject

RECORD = ".objects.json"  # in each copy: the model's place in S3, and the objects by their paths
LOCK = ".lock"
PART = ".part"
PROGRESS_S = 5.0
MIB = 2**20
LONGEST_NAME = 255
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class StoredModel:
    """A model in S3."""

    name: str  # its own
    location: Location  # the prefix of its objects, with a slash at the end
    objects: Mapping[str, StoredObject]  # by their paths in the model's folder

    @property
    def size(self) -> int:
        return sum(one.size for one in self.objects.values())

    @cached_property
    def record(self) -> dict[str, object]:
        """What is kept beside the files."""
        objects = {path: [one.size, one.etag] for path, one in sorted(self.objects.items())}
        return {"source": str(self.location), "objects": objects}

    @property
    def folder(self) -> str:
        """The name of its copy's folder."""
        digest = hashlib.sha256(json.dumps(self.record).encode()).hexdigest()
        return f"{self.name[:200]}@{digest[:16]}"


@dataclass
class ModelCache:
    """A folder of copies."""

    s3: S3
    folder: Path
    most: int  # bytes of all copies
    say: Callable[[str], None]
    named: set[Path] = field(default_factory=set)  # the copies that are to stay
    stopped: bool = False  # whether downloads are to end at once

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()

    def models(self, source: Location, deadline: float, only: str = "") -> dict[str, StoredModel]:
        """Return the models below a prefix that ends with a slash, or only one, by name.

        Objects whose keys are no plain paths are left out, with a line in the log.
        """
        found: dict[str, dict[str, StoredObject]] = {}
        asked = Location(source.bucket, f"{source.key}{only}/") if only else source
        for one in self.s3.list(asked, deadline):
            name, _, path = one.location.key.removeprefix(source.key).partition("/")
            if not path or path.endswith("/"):  # no file of a model, or the mark of a folder
                continue
            if NAME.fullmatch(name) and is_plain(path):
                found.setdefault(name, {})[path] = one
            else:
                self.say(f"{str(one.location)!r} is left out: it is not the path of a model's file")
        return {
            name: StoredModel(name, Location(source.bucket, f"{source.key}{name}/"), objects)
            for name, objects in found.items()
            if is_model(objects)
        }

    def fetch(self, model: StoredModel, deadline: float) -> Path:
        """Return the folder of a whole copy; download what is not there.

        Raises OutOfMemory: there is no room for it.
        Raises StorageUnavailable: an object has changed since it was listed, or the download
        failed.
        Raises InferenceError: as `S3.download`.
        """
        copy = self.folder / model.folder
        part = self.folder / f".{copy.name}{PART}"
        try:
            if not copy.is_dir():
                part.mkdir(parents=True, exist_ok=True)
                with hold_lock(part, fcntl.LOCK_EX, deadline, FOLDER):
                    if not copy.is_dir():  # else another thread or process was faster
                        self.make_room(model)
                        self.fill(part, model, deadline)
                        (part / RECORD).write_text(json.dumps(model.record), encoding="utf-8")
                        part.rename(copy)
            os.utime(copy)
        except Locked:
            raise DeadlineExceeded(
                "the model is still being fetched from S3", hint="try again later"
            ) from None
        except OSError as error:
            if error.errno not in FULL:
                raise StorageFailed(
                    f"the model {model.name} of {model.location} cannot be kept in MODEL_CACHE "
                    f"({error.filename or self.folder}): {error.strerror}",
                    hint="set MODEL_CACHE to a folder that can be written to; no object may have "
                    "the name of a folder of others",
                ) from error
            shutil.rmtree(part, ignore_errors=True)
            raise self.no_room(model, os.strerror(error.errno)) from error
        return copy

    def fill(self, part: Path, model: StoredModel, deadline: float) -> None:
        """Put all files of a model into a folder; files that are there are whole."""
        older = self.older(model)
        done, said, began = 0, time.monotonic(), time.monotonic()
        self.say(f"fetching the model {model.name} from {model.location}: {mib(model.size)}")

        def progress(count: int) -> None:
            nonlocal done, said
            done += count
            if self.stopped:
                raise StorageUnavailable(f"the download of the model {model.name} was stopped")
            if time.monotonic() > said + PROGRESS_S:
                said = time.monotonic()
                self.say(f"the model {model.name}: {mib(done)} of {mib(model.size)}")

        for path, one in model.objects.items():
            file = part / path
            file.parent.mkdir(parents=True, exist_ok=True)
            same = older.get((path, one.size, one.etag))
            if same and not file.exists():
                with suppress(OSError):  # another disk, or it was just removed
                    os.link(same, file)
            if file.is_file():
                progress(one.size)
                continue
            beginning = part / PART
            with beginning.open("wb") as into, closing(self.s3.download(one, deadline)) as pieces:
                for piece in pieces:
                    into.write(piece)
                    progress(len(piece))
                into.flush()
                os.fsync(into.fileno())
            beginning.rename(file)
        took = time.monotonic() - began
        self.say(f"the model {model.name} was fetched in {took:.1f} s")

    def older(self, model: StoredModel) -> dict[tuple[str, int, str], Path]:
        """Return the files of this model's older copies, by path, size and ETag."""
        found = {}
        for record in self.folder.glob(f"{model.name[:200]}@*/{RECORD}"):
            with suppress(OSError, ValueError, KeyError):
                read = json.loads(record.read_text(encoding="utf-8"))
                if read["source"] == str(model.location):
                    for path, (size, etag) in read["objects"].items():
                        found[path, size, etag] = record.parent / path
        return found

    def make_room(self, model: StoredModel) -> None:
        """Remove the oldest copies that nobody uses, as far as a model needs it.

        Raises OutOfMemory: that is not enough.
        """
        with (self.folder / LOCK).open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sizes = {path: size_of(path) for path in self.folder.iterdir() if path.is_dir()}
            needed = max(0, model.size - sizes.pop(self.folder / f".{model.folder}{PART}", 0))
            unused = sizes.keys() - self.named
            for old in (None, *sorted(unused, key=lambda path: path.stat().st_mtime)):
                if old and not is_locked(old, FOLDER):
                    self.say(f"MODEL_CACHE: {old.name} is removed: it is no longer in use")
                    shutil.rmtree(old, ignore_errors=True)
                    del sizes[old]
                free = shutil.disk_usage(self.folder).free
                if sum(sizes.values()) + model.size <= self.most and needed <= free:
                    return
        if needed > free:
            raise self.no_room(model, f"its disk has {mib(free)} left")
        others = mib(sum(sizes.values()))
        raise self.no_room(model, f"others take {others}, and MODEL_CACHE_MB is {mib(self.most)}")

    def no_room(self, model: StoredModel, why: str) -> OutOfMemory:
        return OutOfMemory(
            f"MODEL_CACHE ({self.folder}) has no room for the model {model.name} of "
            f"{mib(model.size)}: {why}",
            hint="raise MODEL_CACHE_MB, set MODEL_CACHE to a folder on a larger disk, or have "
            "fewer models",
        )


def is_plain(path: str) -> bool:
    """Whether a path leads to a file in the folder that it begins in."""
    parts = path.split("/")
    return not PurePosixPath(path).is_absolute() and all(
        part not in {"", ".", "..", RECORD}
        and "\0" not in part
        and not part.startswith(PART)
        and len(part.encode()) <= LONGEST_NAME
        for part in parts
    )


def is_model(paths: Collection[str]) -> bool:
    """Whether files make a model: it has a configuration, version folders or a plain file."""
    return any(
        path in {CONFIG, *PLAIN_MODELS} or path.partition("/")[0].isdigit() for path in paths
    )


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files; those that other copies have too count once."""
    total = 0.0
    for path in folder.rglob("*"):
        with suppress(OSError):
            status = path.lstat()
            total += status.st_size / status.st_nlink if path.is_file() else 0
    return int(total)


def mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
