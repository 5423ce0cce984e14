"""What tests of the whole container share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, Endpoint
from tests.support.docker import TAG, build, docker, skip_without_engine
from tests.support.front import front
from tool.commands.new_client import contents

BERT = {"modelname": "bert_base", "payload": {"text": "The world has [MASK] people."}}


@pytest.fixture
def small_repository(tmp_path: Path, models: None) -> Path:
    """A copy of bert_base alone."""
    folder = tmp_path / "repository"
    shutil.copytree(PROJECT / "model_repository" / "bert_base", folder / "bert_base")
    return folder


def write_own_client(folder: Path, repository: Path) -> None:
    """Write the class of `new-client`, which adding-a-model.md shows, and its model."""
    for path, content in contents("double").items():
        place = (
            repository / path if path.parts[0] == "double" else folder / path.relative_to("code")
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A container whose metrics and log are read."""
    with front(tmp_path_factory.mktemp("seen"), MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def engine() -> None:
    skip_without_engine()


@pytest.fixture(scope="session")
def image(engine: None, models: None) -> Iterator[str]:
    build(TAG)
    yield TAG
    docker("image", "rm", "--force", TAG, check=False)
