"""Copies of models in a real S3: whole or absent, only what has changed, within their limit."""

from __future__ import annotations

import hashlib
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from clients.errors import DeadlineExceeded, UnknownModel
from dispatcher.errors import (
    ObjectForbidden,
    ObjectNotFound,
    ObjectTooLarge,
    OutOfMemory,
    StorageFailed,
    StorageUnavailable,
)
from dispatcher.s3.client import S3, Location, StoredObject
from dispatcher.s3.model_cache import MIB, ModelCache, StoredModel
from dispatcher.s3.remote_models import RemoteModels
from tests.conftest import PROJECT
from tests.support.s3 import BUCKET, READER, REGION, S3Server, credentials


@pytest.fixture
def prefix(s3: S3Server, request: pytest.FixtureRequest) -> str:
    return f"models/{request.node.name.replace('[', '-').rstrip(']')}/"


@pytest.fixture
def client(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return S3(REGION, timeout=300.0)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(client: S3, tmp_path: Path, said: list[str]) -> ModelCache:
    return ModelCache(client, tmp_path / "cache", 100 * MIB, said.append)


def put(s3: S3Server, prefix: str, **files: bytes) -> None:
    """Put files, whose names have `_` for `/` and `__` for a dot."""
    for name, content in files.items():
        s3.put(prefix + name.replace("__", ".").replace("_", "/"), content)


def listed(cache: ModelCache, prefix: str) -> dict[str, StoredModel]:
    return cache.models(Location(BUCKET, prefix), time.monotonic() + 300)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def soon() -> float:
    return time.monotonic() + 300


def test_what_is_written_is_read_and_listed(client: S3, s3: S3Server) -> None:
    place = Location(BUCKET, "round trip/ä+%20.bin")
    content = bytes(range(256)) * 1000
    client.put(place, content, "application/x-test", soon())
    assert s3.read(place.key) == (content, "application/x-test")
    assert client.get(place, soon(), len(content)) == content
    listed = list(client.list(Location(BUCKET, "round trip/"), soon()))
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert listed == [StoredObject(place, 256_000, etag)]


def test_a_larger_object_is_not_read(client: S3, s3: S3Server) -> None:
    s3.put("large.bin", b"x" * 1001)
    assert len(client.get(Location(BUCKET, "large.bin"), soon(), 1001)) == 1001
    with pytest.raises(ObjectTooLarge, match="1001 bytes"):
        client.get(Location(BUCKET, "large.bin"), soon(), 1000)


def test_no_attempt_is_made_after_the_deadline(client: S3) -> None:
    with pytest.raises(DeadlineExceeded, match="S3"):
        client.get(Location(BUCKET, "images/empty.txt"), time.monotonic() - 1, 9)


def test_models_are_listed_and_copied_whole(
    s3: S3Server, cache: ModelCache, prefix: str, said: list[str]
) -> None:
    large = os.urandom(9 * MIB)
    put(s3, prefix, a_config__pbtxt=b"max_batch_size: 4", a_1_model__onnx=large, b_model__onnx=b"b")
    put(s3, prefix, readme__txt=b"no model", notes_readme__txt=b"no model either")
    models = listed(cache, prefix)
    assert set(models) == {"a", "b"}
    assert models["a"].size == 9 * MIB + 17
    copy = cache.fetch(models["a"], math.inf)
    assert content(copy) == {"config.pbtxt": b"max_batch_size: 4", "1/model.onnx": large}
    assert f"fetching the model a from s3://{BUCKET}/{prefix}a/: 9.0 MiB" in said


def test_only_what_has_changed_is_downloaded(
    s3: S3Server, cache: ModelCache, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, prefix, a_config__pbtxt=b"old", a_1_model__onnx=b"weights")
    before = cache.fetch(listed(cache, prefix)["a"], math.inf)
    asked: list[str] = []
    download = S3.download

    def noted(self: S3, stored: StoredObject, deadline: float) -> object:
        asked.append(stored.location.key)
        return download(self, stored, deadline)

    monkeypatch.setattr(S3, "download", noted)
    assert cache.fetch(listed(cache, prefix)["a"], math.inf) == before
    assert asked == []
    put(s3, prefix, a_config__pbtxt=b"new")
    after = cache.fetch(listed(cache, prefix)["a"], math.inf)
    assert asked == [f"{prefix}a/config.pbtxt"]
    assert content(after) == {"config.pbtxt": b"new", "1/model.onnx": b"weights"}
    assert content(before)["config.pbtxt"] == b"old", "a model that is loaded keeps its files"


def test_an_object_that_changes_between_list_and_get_is_not_mixed_in(
    s3: S3Server, cache: ModelCache, prefix: str, tmp_path: Path
) -> None:
    """Its model is listed once more."""
    put(s3, prefix, a_config__pbtxt=b"old", a_1_model__onnx=b"weights")
    store = made(tmp_path, f"s3://{BUCKET}/{prefix}", cache)
    models = store.refresh()
    put(s3, prefix, a_1_model__onnx=b"changed")  # of the same size
    with pytest.raises(StorageUnavailable, match="has changed since it was listed"):
        cache.fetch(models["a"], math.inf)
    assert [path for path in cache.folder.iterdir() if not path.name.startswith(".")] == []
    store.fetch_all(models.values())
    assert content(store.folder / "a")["1/model.onnx"] == b"changed"


def test_an_object_uploaded_in_parts_is_taken_by_its_size(
    s3: S3Server, cache: ModelCache, prefix: str
) -> None:
    large, key = os.urandom(11 * MIB), f"{prefix}a/model.onnx"
    api = s3.client()
    place = {"Bucket": BUCKET, "Key": key}
    upload = {**place, "UploadId": api.create_multipart_upload(**place)["UploadId"]}
    parts = []
    for number, part in enumerate((large[: 6 * MIB], large[6 * MIB :]), 1):
        answer = api.upload_part(**upload, PartNumber=number, Body=part)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    api.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    model = listed(cache, prefix)["a"]
    assert model.objects["model.onnx"].etag.endswith("-2")
    assert content(cache.fetch(model, math.inf)) == {"model.onnx": large}


def test_half_a_download_is_never_there_and_goes_on(
    s3: S3Server, cache: ModelCache, prefix: str, tmp_path: Path
) -> None:
    """Another process downloads, and is killed within the second of three objects."""
    put(s3, prefix, a_0_x=b"first", a_1_model__onnx=bytes(3 * MIB), a_2_x=b"last")
    code = (
        "import math, sys\n"
        "from pathlib import Path\n"
        "from dispatcher.s3.model_cache import ModelCache\n"
        "from dispatcher.s3.client import S3, Location\n"
        "download = S3.download\n"
        "def slow(*each):\n"
        "    for piece in download(*each):\n"
        "        yield piece\n"
        "        if len(piece) > 1000:\n"
        "            print('begun', flush=True); sys.stdin.read()\n"
        "S3.download = slow\n"
        f"cache = ModelCache(S3({REGION!r}), Path({str(cache.folder)!r}), 2**30, id)\n"
        f"model = cache.models(Location({BUCKET!r}, {prefix!r}), math.inf)['a']\n"
        "cache.fetch(model, math.inf)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **s3.environment()},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        model = listed(cache, prefix)["a"]
        with pytest.raises(DeadlineExceeded, match="still being fetched"):
            cache.fetch(model, 0.0)
        process.kill()
    assert [path for path in cache.folder.iterdir() if not path.name.startswith(".")] == []
    whole = {"0/x": b"first", "1/model.onnx": bytes(3 * MIB), "2/x": b"last"}
    assert content(cache.fetch(model, math.inf)) == whole
    assert not list(cache.folder.glob("*.part"))


def test_copies_that_nobody_names_go_first(
    client: S3, s3: S3Server, prefix: str, tmp_path: Path, said: list[str]
) -> None:
    cache = ModelCache(client, tmp_path / "cache", 5 * MIB // 2, said.append)
    for name in ("a", "b"):
        s3.put(f"{prefix}{name}/model.onnx", os.urandom(MIB))
    models = listed(cache, prefix)
    old, kept = (cache.fetch(models[name], math.inf) for name in ("a", "b"))
    cache.named = {kept}
    s3.put(f"{prefix}c/model.onnx", os.urandom(MIB))
    new = cache.fetch(listed(cache, prefix)["c"], math.inf)
    assert (old.exists(), kept.exists(), new.exists()) == (False, True, True)
    cache.named = {kept, new}
    s3.put(f"{prefix}d/model.onnx", os.urandom(MIB))
    with pytest.raises(OutOfMemory) as caught:
        cache.fetch(listed(cache, prefix)["d"], math.inf)
    why = "others take 2.0 MiB, and MODEL_CACHE_MB is 2.5 MiB"
    assert f"no room for the model d of 1.0 MiB: {why}" in str(caught.value)
    assert "MODEL_CACHE_MB" in caught.value.hint


def test_a_full_disk_is_named_and_leaves_nothing(
    s3: S3Server, cache: ModelCache, prefix: str
) -> None:
    s3.put(f"{prefix}a/model.onnx", bytes(3 * MIB))
    model = listed(cache, prefix)["a"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(OutOfMemory, match=r"no room for the model a of 3\.0 MiB") as caught:
            cache.fetch(model, math.inf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "a larger disk" in caught.value.hint
    assert not list(cache.folder.glob("*a@*"))
    assert content(cache.fetch(model, math.inf)) == {"model.onnx": bytes(3 * MIB)}


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "is away"])
def test_an_s3_that_does_not_answer_is_named_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if hangs:
            silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        cache = ModelCache(S3(REGION, timeout=1.0), tmp_path, MIB, print)
        began = time.monotonic()
        with pytest.raises((DeadlineExceeded, StorageUnavailable), match="S3"):
            cache.models(Location(BUCKET, "models/"), math.inf)
        assert time.monotonic() < began + 100  # boto3 by itself waits for minutes


def test_a_missing_bucket_and_missing_rights_are_named(
    s3: S3Server, cache: ModelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ObjectNotFound, match="no bucket 'nowhere-at-all'"):
        cache.models(Location("nowhere-at-all", "models/"), math.inf)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER)
    reader = ModelCache(S3(REGION), tmp_path, MIB, print)
    with pytest.raises(ObjectForbidden, match="does not permit s3:ListBucket"):
        reader.models(Location(BUCKET, "models/"), math.inf)


def made(tmp_path: Path, url: str, cache: ModelCache) -> RemoteModels:
    (tmp_path / "run" / "models").mkdir(parents=True)
    return RemoteModels.made(tmp_path / "run" / "models" / "0", url, cache)


def test_models_that_are_not_fetched_have_their_aliases(
    s3: S3Server, cache: ModelCache, prefix: str, tmp_path: Path
) -> None:
    put(s3, prefix, a_model__onnx=b"a", a_dispatch__toml=b'aliases = ["first"]\n')
    store = made(tmp_path, f"s3://{BUCKET}/{prefix.rstrip('/')}", cache)
    store.refresh()
    assert content(store.folder / "a") == {"dispatch.toml": b'aliases = ["first"]\n'}
    assert not store.is_fetched("a")
    store.fetch("a")
    assert store.is_fetched("a")
    assert content((store.folder / "a").resolve())["model.onnx"] == b"a"
    with pytest.raises(UnknownModel, match="has no model any more"):
        store.fetch("b")


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
