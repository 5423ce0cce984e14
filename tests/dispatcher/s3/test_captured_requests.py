"""Captured requests on their way to S3: they wait while it is away."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path

import pytest

from dispatcher.rollout.capture import Capture
from dispatcher.rollout.capture_files import CaptureFiles
from dispatcher.rollout.captured_request import CapturedLines
from dispatcher.s3.client import S3, Location
from dispatcher.settings import read_settings
from tests.support.s3 import BUCKET, REGION, S3Server, credentials

NOON = 1_800_000_000.0 // 86400 * 86400 + 43200


def test_lines_wait_for_s3_and_are_uploaded_with_their_files(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}
    for name, text in {**credentials(), **away}.items():
        monkeypatch.setenv(name, text)
    now = [NOON]
    to = Location(BUCKET, "captured/shop")
    files = CaptureFiles(tmp_path, s3=S3(REGION, 1), to=to, clock=lambda: now[0])
    lines = CapturedLines(payloads=True, hidden={}, describe=lambda *_: {})
    capture = Capture(read_settings({}), lines, files, print)
    files.prepare()
    name = files.keep(b"\x89PNG a picture")
    files.append(b'{"a": 1}\n')
    capture.tidy()  # the file that is open is not uploaded
    assert "captured requests wait" not in caplog.text
    now[0] += 61
    files.prepare()
    with caplog.at_level(logging.WARNING):
        capture.tidy()
        capture.tidy()
    (said,) = [one.message for one in caplog.records]
    assert said.startswith("captured requests wait for S3: S3 cannot be reached for s3://")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    files.s3 = S3(REGION)
    # A web worker that was killed has left lines, too; one that lives has some of its own.
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, 1):
        hour = tmp_path / str(pid) / "2027" / "01" / "15" / "12"
        hour.mkdir(parents=True)
        (hour / f"of-{pid}.jsonl").write_bytes(b'{"b": 1}\n')
    capture.tidy()
    found = {one.location.key: one for one in files.s3.list(to, 1e9)}
    assert len(found) == 3
    (lines,) = (key for key in found if key.endswith(".jsonl") and f"of-{dead.pid}" not in key)
    assert f"captured/shop/2027/01/15/12/of-{dead.pid}.jsonl" in found
    assert lines.startswith("captured/shop/2027/01/15/12/")
    assert json.loads(s3.read(lines)[0]) == {"a": 1}
    assert s3.read(f"{lines.rpartition('/')[0]}/{name}")[0] == b"\x89PNG a picture"
    assert {one.name for one in tmp_path.rglob("*.*")} == {files._path.name, "of-1.jsonl"}
    assert files._staged == 0


def test_no_more_waits_than_there_is_room(tmp_path: Path) -> None:
    files = CaptureFiles(tmp_path, s3=S3(REGION, 1), to=Location(BUCKET))
    files.prepare()
    files.append(b"x" * 2**20)
    files._staged = 2**40
    with pytest.raises(OSError, match="No space left"):
        files.prepare()
