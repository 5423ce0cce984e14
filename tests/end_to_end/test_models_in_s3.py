"""Models in a real S3, served by the whole container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Endpoint, running, start
from tests.support.models.adders import added, ask_adder, files, write_adder
from tests.support.s3 import BUCKET, S3Server

PREFIX = "served/models"


def put(s3: S3Server, name: str, number: float, client: str = "") -> None:
    for path, content in files(number, client).items():
        s3.put(f"{PREFIX}/{name}/{path}", content)


@pytest.fixture(scope="module")
def served(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """`local` comes from a folder, `warm`, `cold` and `far` from S3."""
    folder = tmp_path_factory.mktemp("in_s3")
    write_adder(folder / "models" / "local", 1)
    put(s3, "warm", 2)
    put(s3, "cold", 3, 'aliases = ["frozen"]\n')
    put(s3, "far", 6)
    settings = s3.environment(
        MODEL_REPOSITORY=f"{folder / 'models'},s3://{BUCKET}/{PREFIX}",
        MODEL_CACHE=str(folder / "cache"),
        LOAD_ON_DEMAND="true",
        PINNED_MODELS="warm,local",
    )
    with running(folder, **settings) as endpoint:
        yield endpoint


def copies(served: Endpoint) -> set[str]:
    cache = served.log.parent / "cache"
    return {path.name.partition("@")[0] for path in cache.iterdir() if path.name[0] != "."}


def test_a_model_is_fetched_at_its_first_request(served: Endpoint) -> None:
    assert copies(served) == {"warm"}, "others are not fetched before they are asked"
    listed = served.call("/models").json
    urls = {one["modelName"]: one["modelUrl"] for one in listed["models"]}
    assert set(urls) == {"local", "warm"}
    assert urls["warm"] == f"s3://{BUCKET}/{PREFIX}/warm/"
    aliases = {one["modelName"]: one["aliases"] for one in listed["available"]}
    assert aliases == {"cold": ["frozen"], "far": []}
    assert listed["available"][0]["modelUrl"] == f"s3://{BUCKET}/{PREFIX}/cold/"
    for name, number in (("local", 1), ("warm", 2), ("frozen", 3), ("cold", 3)):
        assert added(ask_adder(served, name)) == [number] * 3
    assert copies(served) == {"warm", "cold"}


def test_a_start_that_cannot_have_its_models_says_what_to_change(
    s3: S3Server, tmp_path: Path
) -> None:
    settings = s3.environment(MODEL_REPOSITORY="s3://nowhere-at-all/models")
    refused = start(tmp_path, MODEL_CACHE=str(tmp_path / "cache"), **settings)
    assert refused.process.wait(60) == 2
    log = refused.log.read_text()
    assert "MODEL_REPOSITORY has s3://nowhere-at-all/models/: " in log
    assert "there is no bucket 'nowhere-at-all' in S3" in log
