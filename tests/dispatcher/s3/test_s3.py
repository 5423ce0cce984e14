"""The S3 client against a real server."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time

import pytest

from clients.errors import DeadlineExceeded
from dispatcher.errors import (
    ObjectForbidden,
    ObjectNotFound,
    ObjectTooLarge,
    StorageFailed,
    StorageUnavailable,
)
from dispatcher.s3.client import S3, Location, StoredObject
from dispatcher.settings import read_settings
from tests.conftest import PROJECT, free_ports
from tests.support.s3 import BUCKET, FULL, READER, S3Server


def soon() -> float:
    return time.monotonic() + 20


@pytest.fixture
def client(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3:
    return made(s3, monkeypatch)


def made(s3: S3Server, monkeypatch: pytest.MonkeyPatch, key: str = FULL, **settings: str) -> S3:
    for name, value in (environment := s3.environment(key, **settings)).items():
        monkeypatch.setenv(name, value)
    return S3.of(read_settings(environment))


def test_what_is_written_is_read_and_listed(client: S3, s3: S3Server) -> None:
    place = Location(BUCKET, "round trip/ä+%20.bin")
    content = bytes(range(256)) * 1000
    client.put(place, content, "application/x-test", soon())
    assert s3.read(place.key) == (content, "application/x-test")
    assert client.get(place, soon(), len(content)) == content
    listed = list(client.list(Location(BUCKET, "round trip/"), soon()))
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert listed == [StoredObject(place, 256_000, etag)]


def test_a_missing_key_and_bucket_are_named(client: S3) -> None:
    with pytest.raises(ObjectNotFound, match=r"no object 'nowhere\.jpg'"):
        client.get(Location(BUCKET, "nowhere.jpg"), soon(), 9)
    with pytest.raises(ObjectNotFound, match="no bucket 'no-such-bucket'"):
        client.get(Location("no-such-bucket", "a"), soon(), 9)


def test_a_larger_object_is_not_read(client: S3, s3: S3Server) -> None:
    s3.put("large.bin", b"x" * 1001)
    assert len(client.get(Location(BUCKET, "large.bin"), soon(), 1001)) == 1001
    with pytest.raises(ObjectTooLarge, match="1001 bytes"):
        client.get(Location(BUCKET, "large.bin"), soon(), 1000)


def test_a_missing_right_is_named(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = made(s3, monkeypatch, READER)
    s3.put("images/mine.txt", b"mine")
    s3.put("others/yours.txt", b"yours")
    assert reader.get(Location(BUCKET, "images/mine.txt"), soon(), 9) == b"mine"
    with pytest.raises(ObjectForbidden, match="s3:GetObject") as read:
        reader.get(Location(BUCKET, "others/yours.txt"), soon(), 9)
    assert "arn:aws:s3:::pictures/others/yours.txt" in read.value.hint
    with pytest.raises(ObjectForbidden, match="s3:PutObject"):
        reader.put(Location(BUCKET, "images/mine.txt"), b"", "text/plain", soon())


def test_wrong_credentials_are_the_servers_fault_and_are_not_shown(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "NOBODYSACCESSKEY0000"
    stranger = made(s3, monkeypatch, key)
    with pytest.raises(StorageFailed, match="InvalidAccessKeyId") as error:
        stranger.get(Location(BUCKET, "images/empty.txt"), soon(), 9)
    assert key not in error.value.message + error.value.hint


def test_a_refused_connection_is_503(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    client = made(s3, monkeypatch, S3_ENDPOINT_URL=url)
    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        client.get(Location(BUCKET, "a"), soon(), 9)


def test_no_attempt_is_made_after_the_deadline(client: S3) -> None:
    with pytest.raises(DeadlineExceeded, match="S3"):
        client.get(Location(BUCKET, "images/empty.txt"), time.monotonic() - 1, 9)


def test_boto3_is_not_imported_before_the_first_call() -> None:
    code = (
        "import sys, dispatcher.wsgi, dispatcher.s3.client as s3; s3.S3();"
        "print([n for n in sys.modules if n.startswith('boto')])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, check=True)
    assert run.stdout == b"[]\n"
