"""Decide whether a model has to be made, and install it atomically.

Beside every model that it makes, the tool keeps `model.onnx.source.json`: where it came from and
its sha256. A `model.onnx` that does not match such a record is the user's own, and is kept. The
record is in the model's folder, above the version, where Triton does not look.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from weights.errors import WeightsError
from weights.sources import ShippedSource, WeightsSource, load

MODEL, VERSION, RECORD = "model.onnx", "1", "model.onnx.source.json"


class WeightsStatus(Enum):
    """What there is at a model's place."""

    ABSENT = "not there yet"
    READY = "ready"
    OUTDATED = "out of date"
    OWN = "your own file"


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

    def state(self, source: WeightsSource) -> WeightsStatus:
        """Compare the file with its record and the manifest."""
        if not self.model.exists():
            return WeightsStatus.ABSENT
        with self.model.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if isinstance(source, ShippedSource) and source.sha256 == sha256:
            return WeightsStatus.READY
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
            if (record["sha256"], record["source"]) != (sha256, source.kind):
                return WeightsStatus.OWN
            is_current = source.origin == record["origin"]
        except (OSError, ValueError, KeyError, TypeError):
            # No record, or not one of ours: the file is then the user's, which is the safe answer.
            return WeightsStatus.OWN
        return WeightsStatus.READY if is_current else WeightsStatus.OUTDATED

    def put(self, source: WeightsSource, model: bytes) -> None:
        """Write a model and the record of it.

        Every file is written beside its place and renamed, so that what stood there before stays
        until its successor is whole. Raises WeightsError if the folder cannot be written.
        """
        record = {
            "source": source.kind,
            "origin": source.origin,
            "weights": source.weights,
            "licence": source.licence,
            "sha256": hashlib.sha256(model).hexdigest(),
        }
        try:
            # Before the model: if the run ends between the two, the next one makes the model
            # again instead of taking it for the user's.
            _replace(self.record, f"{json.dumps(record, indent=2)}\n".encode())
            _replace(self.model, model)
        except OSError as error:
            raise WeightsError(f"{self.folder} cannot be written: {error}") from error


def sources_of(repository: Path) -> Iterator[tuple[Path, WeightsSource | None]]:
    """Yield each model's folder, and the source of its weights where they are of the manifest."""
    manifest = load()
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        source = manifest.get(folder.name)
        made = (WeightsStatus.READY, WeightsStatus.OUTDATED)
        yield folder, source if source and Place(folder).state(source) in made else None


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
