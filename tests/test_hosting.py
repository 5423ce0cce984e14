"""Models from elsewhere, when Triton was started anew and one of them did not load."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import UnknownModel
from dispatcher.errors import AlreadyLoaded
from dispatcher.hosting import Hosting
from tests.fake_triton import FakeTriton


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def hosting(server: FakeTriton, tmp_path: Path) -> Hosting:
    for name in ("repository", "wanted", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    return Hosting(
        server, tmp_path / "repository", (), lambda text, _: text, 10, tmp_path / "wanted"
    )


def wanted(hosting: Hosting) -> list[str]:
    assert hosting.wanted is not None
    return sorted(path.name for path in hosting.wanted.iterdir())


def test_what_is_loaded_is_noted_and_what_is_unloaded_is_not(
    hosting: Hosting, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    hosting.load("two", str(tmp_path / "elsewhere"))
    assert wanted(hosting) == ["one", "two"]
    hosting.unload("one")
    assert wanted(hosting) == ["two"]


def test_a_model_that_was_lost_can_be_loaded_again(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    with pytest.raises(AlreadyLoaded):
        hosting.load("one", str(tmp_path / "elsewhere"))
    server.unloaded.add("one")
    hosting.load("one", str(tmp_path / "elsewhere"))
    assert hosting.is_loaded("one")
    assert wanted(hosting) == ["one"]


def test_a_model_that_was_lost_can_be_unloaded(
    hosting: Hosting, server: FakeTriton, tmp_path: Path
) -> None:
    hosting.load("one", str(tmp_path / "elsewhere"))
    server.unloaded.add("one")
    hosting.unload("one")
    assert wanted(hosting) == []
    assert not (hosting.repository / "one").exists()
    with pytest.raises(UnknownModel):
        hosting.unload("one")
