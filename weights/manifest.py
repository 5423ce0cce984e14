"""Reads `manifest.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from weights.errors import WeightsError
from weights.sources import KINDS, WeightsSource

MANIFEST = Path(__file__).with_name("manifest.toml")


def load(path: Path = MANIFEST) -> dict[str, WeightsSource]:
    """Return where the weights of each model come from, by its name, in the manifest's order.

    Raises WeightsError naming the model and the key that is missing or unknown.
    """
    sources: dict[str, WeightsSource] = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        try:
            sources[name] = KINDS[table.pop("kind")](**table)
        except (KeyError, TypeError) as error:
            raise WeightsError(f"{path.name}: {name}: {error}") from error
    return sources
