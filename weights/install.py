"""Decide whether a model has to be made, and install it atomically.

Beside every model that it makes, the tool keeps `model.onnx.source.json`: where it came from and
its sha256. A `model.onnx` that does not match such a record is the user's own, and is kept. The
record is in the model's folder, above the version, where Triton does not look.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING

from weights.errors import WeightsError
from weights.sources import ShippedSource

if TYPE_CHECKING:
    from pathlib import Path

    from weights.manifest import Model
    from weights.sources import Product, WeightsSource

MODEL, VERSION, RECORD = "model.onnx", "1", "model.onnx.source.json"
PART = ".part"
LEFT_BEHIND_S = 3600  # a temporary file this old belongs to a run that was killed


class WeightsStatus(Enum):
    """What there is at a model's place."""

    ABSENT = "not there yet"
    READY = "ready"
    OUTDATED = "out of date"
    OWN = "your own file"


@dataclass(frozen=True)
class WeightsState:
    """A model's status, and the name of its source where that is known."""

    status: WeightsStatus
    source: str = ""


@dataclass(frozen=True)
class Record:
    """What the tool remembers of a model that it made.

    `origin` is `Source.origin`, `weights` says in words which they are; `size` in bytes and
    `mtime_ns` let an untouched file be recognised without reading it.
    """

    source: str
    origin: str
    detail: str
    weights: str
    licence: str
    sha256: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Place:
    """The folder of one model in the repository."""

    folder: Path

    @property
    def model(self) -> Path:
        """Where Triton expects the model."""
        return self.folder / VERSION / MODEL

    @property
    def record(self) -> Path:
        """Where the tool remembers what it made."""
        return self.folder / RECORD

    def state(self, model: Model) -> WeightsState:
        """Compare the file with its record and the manifest, reading little."""
        if not self.model.exists():
            return WeightsState(WeightsStatus.ABSENT)
        record = self._read_record()
        stat = self.model.stat()
        if record and (record.size, record.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
            return _compare(record, model)
        sha256 = _digest(self.model)
        for source in model.sources:
            if isinstance(source, ShippedSource) and source.sha256 == sha256:
                return WeightsState(WeightsStatus.READY, source.name)
        if record and record.sha256 == sha256:
            return _compare(record, model)
        return WeightsState(WeightsStatus.OWN)

    def put(self, source: WeightsSource, product: Product) -> None:
        """Write a product and the record of it.

        Every file is written beside its place, read back, and renamed, so that what stood there
        before stays until its successor is whole. Raises WeightsError if the folder cannot be
        written or does not give back what was written.
        """
        try:
            self.sweep()
            for name, data in product.files.items():
                _replace(self.folder / name, data)
            part = _write(self.model, product.model)
            try:
                stat = part.stat()
                record = Record(
                    source.name,
                    source.origin,
                    product.detail,
                    source.weights,
                    source.licence,
                    hashlib.sha256(product.model).hexdigest(),
                    stat.st_size,
                    stat.st_mtime_ns,
                )
                # Before the model: if the run ends between the two, the next one makes the model
                # again instead of taking it for the user's.
                text = json.dumps(asdict(record), indent=2) + "\n"
                _replace(self.record, text.encode())
                part.replace(self.model)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise WeightsError(f"{self.folder} cannot be written: {error}") from error

    def sweep(self) -> None:
        """Remove temporary files that a killed run left behind more than an hour ago."""
        for part in self.folder.glob(f"**/.*{PART}"):
            try:
                age = time.time() - part.stat().st_mtime
            except FileNotFoundError:  # another run has renamed it
                continue
            if age > LEFT_BEHIND_S:
                part.unlink(missing_ok=True)

    def _read_record(self) -> Record | None:
        try:
            return Record(**json.loads(self.record.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            # No record, or not one of ours: the file is then the user's, which is the safe answer.
            return None


def _compare(record: Record, model: Model) -> WeightsState:
    source = model.source(record.source)
    current = source is not None and source.origin == record.origin
    return WeightsState(WeightsStatus.READY if current else WeightsStatus.OUTDATED, record.source)


def _replace(path: Path, data: bytes) -> None:
    part = _write(path, data)
    try:
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> Path:
    """Write `data` to a temporary file beside `path`, check it, and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _verify(part, data)
    except BaseException:  # an interruption too must leave nothing half-written
        part.unlink(missing_ok=True)
        raise
    return part


def _verify(path: Path, data: bytes) -> None:
    if _digest(path) != hashlib.sha256(data).hexdigest():
        raise WeightsError(f"{path} does not hold what was written to it")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
