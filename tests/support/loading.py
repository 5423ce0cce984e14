"""Loads models, for tests."""

from __future__ import annotations

from pathlib import Path

from dispatcher.models.load_unload import ModelLoader
from tests.support.fake_triton import FakeTriton


class Hosting(ModelLoader):
    """Loads models into a `FakeTriton`; beside its repository is a folder of one, `elsewhere`."""

    server: FakeTriton

    @property
    def folder(self) -> Path:
        """The folder of the model elsewhere."""
        return self.repository.with_name("elsewhere")

    @property
    def url(self) -> str:
        """The same, for `load`."""
        return str(self.folder)

    def listed(self) -> list[str]:
        """Return the models that Triton is to load when it is restarted."""
        assert self.wanted is not None
        return sorted(path.name for path in self.wanted.iterdir())
