"""Reads `manifest.toml`."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weights.errors import ManifestError
from weights.sources import KINDS, WeightsSource

MANIFEST = Path(__file__).with_name("manifest.toml")
# Dataclass fields carry their types as text (postponed annotations).
TYPES = {"str": str, "int": int, "bool": bool}


@dataclass(frozen=True)
class Model:
    """One model of the repository, and the sources of its weights by preference."""

    name: str
    sources: tuple[WeightsSource, ...]

    def source(self, name: str) -> WeightsSource | None:
        return next((source for source in self.sources if source.name == name), None)


def load(path: Path = MANIFEST) -> dict[str, Model]:
    """Return the models of the manifest by name, in its order.

    Raises ManifestError naming the model and the key that is missing, unknown, or of a wrong type.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["model"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ManifestError(f"{path} is not a manifest: {error}") from error
    return {
        name: Model(name, tuple(_source(name, entry) for entry in table["source"]))
        for name, table in tables.items()
    }


def _source(model: str, entry: dict[str, Any]) -> WeightsSource:
    kind = entry.pop("kind", None)
    if kind not in KINDS:
        raise ManifestError(f"{model}: kind {kind!r} is not one of {', '.join(KINDS)}")
    fields = {field.name: field for field in dataclasses.fields(KINDS[kind])}
    for key, value in entry.items():
        if key not in fields:
            raise ManifestError(f"{model}: {kind} sources have no key {key!r}")
        wanted = TYPES[str(fields[key].type)]
        if type(value) is not wanted:
            raise ManifestError(f"{model}: {key!r} is not of type {wanted.__name__}")
    for key, field in fields.items():
        if key not in entry and field.default is dataclasses.MISSING:
            raise ManifestError(f"{model}: key {key!r} is missing")
    return KINDS[kind](**entry)
