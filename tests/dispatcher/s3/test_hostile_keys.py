"""Keys of objects that are no paths of files: nothing is written outside of the cache."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from dispatcher.errors import StorageFailed
from dispatcher.s3.client import S3, Location, StoredObject
from dispatcher.s3.model_cache import MIB, ModelCache

HOSTILE = [
    "a/../../out",
    "a/1/../../../out",
    "a//etc/out",
    "../out/1/model.onnx",
    "a/./out",
    ".out/1/model.onnx",
    "a/" + "long" * 70,
]
GOOD = "a/model.onnx"


class AnyKey(S3):
    """Has objects of any key, as AWS's takes them; SeaweedFS, which the other tests ask, does not.

    Args:
        keys: of the objects below each prefix.

    """

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.keys = keys

    def list(self, prefix: Location, deadline: float) -> Iterator[StoredObject]:
        for key in self.keys:
            yield StoredObject(Location(prefix.bucket, prefix.key + key), 4, "mark")

    def download(self, stored: StoredObject, deadline: float) -> Generator[bytes]:
        yield b"good" if stored.location.key.endswith(GOOD) else b"evil"


def test_no_key_leads_out_of_the_cache(tmp_path: Path) -> None:
    said: list[str] = []
    cache = ModelCache(AnyKey(*HOSTILE, GOOD), tmp_path / "in" / "cache", MIB, said.append)
    models = cache.models(Location("evil", "models/"), math.inf)
    assert set(models) == {"a"}
    cache.fetch(models["a"], math.inf)
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files.pop("model.onnx") == b"good"
    assert b"evil" not in files.values()
    for key in HOSTILE:
        assert f"'s3://evil/models/{key}' is left out: it is not the path of a model's file" in said


def test_a_key_that_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    cache = ModelCache(AnyKey("a/1", "a/1/model.onnx"), tmp_path / "cache", MIB, print)
    with pytest.raises(StorageFailed, match="cannot be kept in MODEL_CACHE") as caught:
        cache.fetch(cache.models(Location("both", ""), math.inf)["a"], math.inf)
    assert "no object may have the name of a folder" in caught.value.hint
