"""Reads `manifest.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from weights.errors import WeightsError
from weights.sources import KINDS, WeightsSource

MANIFEST = Path(__file__).with_name("manifest.toml")


@dataclass(frozen=True)
class Model:
    """One model of the repository, and the sources of its weights by preference."""

    name: str
    sources: tuple[WeightsSource, ...]

    def source(self, name: str) -> WeightsSource | None:
        return next((source for source in self.sources if source.name == name), None)


def load(path: Path = MANIFEST) -> dict[str, Model]:
    """Return the models of the manifest by name, in its order.

    Raises WeightsError naming the model and the key that is missing or unknown.
    """
    models = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8"))["model"].items():
        try:
            sources = tuple(KINDS[entry.pop("kind")](**entry) for entry in table["source"])
        except (KeyError, TypeError) as error:
            raise WeightsError(f"{path.name}: {name}: {error}") from error
        models[name] = Model(name, sources)
    return models
