"""A repository and a folder of a model elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.models.load_unload import ModelLoader
from tests.support.fake_triton import FakeTriton


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def hosting(server: FakeTriton, tmp_path: Path) -> ModelLoader:
    for name in ("repository", "wanted", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    return ModelLoader(
        tmp_path / "repository", (), lambda text, _: text, server, 10, tmp_path / "wanted"
    )
