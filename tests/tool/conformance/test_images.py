"""`dispatcher conformance IMAGE`, on a real Docker engine: images of others, and this project's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support.docker import docker, skip_without_engine
from tool.__main__ import main

pytestmark = pytest.mark.image

IMAGES = Path(__file__).parent / "images"
REQUEST = '{"x": 1}'
SLOW = '{"x": 3}'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Build an image of a folder; return its name."""
    skip_without_engine()
    tags: list[str] = []

    def build(name: str, folder: Path) -> str:
        tags.append(f"dispatcher-conformance-{name}")
        docker("build", "--network", "host", "--tag", tags[-1], folder)
        return tags[-1]

    yield build
    for tag in tags:
        docker("image", "rm", "--force", tag, check=False)
    assert not docker("ps", "--all", "--quiet", "--filter", "name=dispatcher-emulate-")
    assert not docker("network", "ls", "--quiet", "--filter", "name=dispatcher-emulate-")


def examined(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, dict[str, str]]:
    """Return the exit code and what came of each check."""
    code = main(["conformance", *map(str, arguments), "--json"])
    found = json.loads(capsys.readouterr().out)["checks"]
    return code, {one["check"]: one["outcome"] for one in found}


def failed(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == "fail"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flask", {"start.exec-form", "ping.loading", "stop.sigterm"}),
        ("litserve", {"stop.sigterm"}),
    ],
)
def test_what_is_found_in_others(
    name: str, expected: set[str], built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "request.json").write_text(REQUEST)
    (tmp_path / "slow.json").write_text(SLOW)
    image = built(name, IMAGES / name)
    code, outcomes = examined(
        *(capsys, image, "--body", tmp_path / "request.json"),
        *("--slow-body", tmp_path / "slow.json", "--start-timeout=120"),
    )
    assert (code, failed(outcomes)) == (1, expected)


def test_this_project_s_image_keeps_the_contract(
    models: None, built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("resnet", "bert_base"):
        shutil.copytree(PROJECT / "model_repository" / name, tmp_path / name, symlinks=False)
    code, outcomes = examined(capsys, built("own", PROJECT), "--multi-model", tmp_path)
    assert (code, failed(outcomes)) == (0, set())
    assert {name for name, outcome in outcomes.items() if outcome != "pass"} == {
        *("start.read-only-model", "bidirectional.label", "deadlines.slow", "multi-model.full")
    }
