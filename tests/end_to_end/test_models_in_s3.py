"""Models in a real S3, served by the whole container."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT, Endpoint, free_ports, running
from tests.support.models.adders import added, ask_adder, files, write_adder
from tests.support.s3 import BUCKET, FULL, READER, S3Server, credentials
from tests.support.triton import process

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


@pytest.mark.parametrize(
    ("source", "key", "says"),
    [
        ("nowhere-at-all/models", FULL, "there is no bucket 'nowhere-at-all' in S3"),
        (f"{BUCKET}/{PREFIX}", READER, "does not permit s3:ListBucket"),
    ],
)
def test_a_start_that_cannot_have_its_models_says_what_to_change(
    s3: S3Server, tmp_path: Path, source: str, key: str, says: str
) -> None:
    code, log = serve(s3.environment(key), tmp_path, MODEL_REPOSITORY=f"s3://{source}")
    assert code == 2, log
    assert f"MODEL_REPOSITORY has s3://{source}/: " in log
    assert says in log


def serve(environment: dict[str, str], folder: Path, **settings: str) -> tuple[int, str]:
    """Run `serve` until it ends by itself; return its exit code and its log."""
    ports = free_ports(4)
    own = {
        "PYTHON": sys.executable,
        "SAGEMAKER_BIND_TO_PORT": str(ports[0]),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{ports[1]}-{ports[-1]}",
        "MODEL_CACHE": str(folder / "cache"),
        **settings,
    }
    done = subprocess.run(
        [PROJECT / "serve", "serve"],
        env={**os.environ, **environment, **own},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_an_s3_that_hangs_ends_the_start_in_time(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {**credentials(), "S3_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
        began = time.monotonic()
        settings = {"MODEL_REPOSITORY": "s3://models/all", "MODEL_SERVER_TIMEOUT": "6"}
        code, log = serve(environment, tmp_path, **settings)
    assert code == 2, log
    assert "S3 did not answer in time" in log or "S3 took too long" in log
    assert time.monotonic() < began + 20


def test_a_cache_that_is_too_small_ends_the_start(s3: S3Server, tmp_path: Path) -> None:
    s3.put("large/a/model.onnx", bytes(2 * 2**20))
    code, log = serve(
        s3.environment(), tmp_path, MODEL_REPOSITORY=f"s3://{BUCKET}/large", MODEL_CACHE_MB="1"
    )
    assert code == 2, log
    assert "has no room for the model a of 2.0 MiB: others take 0.0 MiB, and MODEL_CACHE_MB" in log
    assert "raise MODEL_CACHE_MB" in log
    shutil.rmtree(tmp_path / "cache")


@pytest.mark.slow
def test_a_triton_elsewhere_reads_models_in_s3_itself(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` has the `dispatch.toml`, here only an alias, and Triton has the model."""
    put(s3, "there", 9)
    for name, value in (credentials() | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "models").mkdir()
    client = tmp_path / "local" / "there" / "dispatch.toml"
    client.parent.mkdir(parents=True)
    client.write_text('aliases = ["yonder"]\n')
    repository = f"--model-repository=s3://{s3.url}/{BUCKET}/{PREFIX}"
    with (
        process.running(tmp_path, ["there"], options=[repository]) as triton,
        running(
            tmp_path,
            TRITON_URL=f"127.0.0.1:{triton.ports[0]}",
            MODEL_REPOSITORY=str(tmp_path / "local"),
        ) as endpoint,
    ):
        assert added(ask_adder(endpoint, "yonder")) == [9] * 3
        put(s3, "late", 4)
        assert endpoint.call("/load_model/late", method="POST").status == 200
        assert added(ask_adder(endpoint, "late")) == [4] * 3
