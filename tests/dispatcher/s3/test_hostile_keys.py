"""Keys of objects that are no paths of files: nothing is written outside of the cache."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from dispatcher.errors import StorageFailed
from dispatcher.s3.client import S3, Location
from dispatcher.s3.model_cache import MIB, ModelCache
from tests.conftest import free_ports, wait_for
from tests.support.s3 import FULL, REGION, SECRET, credentials

HOSTILE = [
    "a/../../out",
    "a/1/../../../out",
    "a//etc/out",
    "../out/1/model.onnx",
    "a/./out",
    ".out/1/model.onnx",
    "a/" + "long" * 70,
]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """An S3 server that takes any key, unlike SeaweedFS."""
    (port,) = free_ports(1)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(listens, 30, "moto")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def api(moto: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    return boto3.session.Session(FULL, SECRET, region_name=REGION).client("s3", endpoint_url=moto)


def test_no_key_leads_out_of_the_cache(moto: str, api: Any, tmp_path: Path) -> None:
    api.create_bucket(Bucket="evil")
    api.put_object(Bucket="evil", Key="models/a/model.onnx", Body=b"good")
    for key in HOSTILE:
        api.put_object(Bucket="evil", Key=f"models/{key}", Body=b"bad")
    there = {one["Key"] for one in api.list_objects_v2(Bucket="evil")["Contents"]}
    assert {f"models/{key}" for key in HOSTILE} < there, "the server has changed a key"
    said: list[str] = []
    cache = ModelCache(S3(moto, REGION), tmp_path / "in" / "cache", MIB, said.append)
    models = cache.models(Location("evil", "models/"), math.inf)
    assert set(models) == {"a"}
    cache.fetch(models["a"], math.inf)
    files = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files.pop("model.onnx") == b"good"
    assert b"bad" not in files.values()
    for key in HOSTILE:
        assert f"'s3://evil/models/{key}' is left out: it is not the path of a model's file" in said


def test_a_key_that_is_a_file_and_a_folder_is_refused(moto: str, api: Any, tmp_path: Path) -> None:
    api.create_bucket(Bucket="both")
    for key in ("a/1", "a/1/model.onnx"):
        api.put_object(Bucket="both", Key=key, Body=b"x")
    cache = ModelCache(S3(moto, REGION), tmp_path / "cache", MIB, print)
    with pytest.raises(StorageFailed, match="cannot be kept in MODEL_CACHE") as caught:
        cache.fetch(cache.models(Location("both", ""), math.inf)["a"], math.inf)
    assert "no object may have the name of a folder" in caught.value.hint
