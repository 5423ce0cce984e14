"""Folders of models, for tests that load them."""

from __future__ import annotations

from dispatcher.models.load_unload import ModelLoader


def wanted(hosting: ModelLoader) -> list[str]:
    assert hosting.wanted is not None
    return sorted(path.name for path in hosting.wanted.iterdir())
