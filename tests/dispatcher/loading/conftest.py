"""A repository and a folder of a model elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_triton import FakeTriton
from tests.support.loading import Hosting


@pytest.fixture
def hosting(tmp_path: Path) -> Hosting:
    for name in ("repository", "wanted", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    return Hosting(
        tmp_path / "repository", (), lambda text, _: text, FakeTriton(), 10, tmp_path / "wanted"
    )
