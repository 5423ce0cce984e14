"""Asynchronous calls and batch transform, with a real S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sagemaker_emulator.emulate.places import bucket_and_key

from tests.conftest import PROJECT, wait_for
from tests.support.emulate import Emulated, emulated
from tests.support.s3 import BUCKET, S3Server


@pytest.fixture(scope="module")
def later(
    container: Path, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulated]:
    """Writes to S3."""
    with emulated(
        tmp_path_factory.mktemp("emulate"),
        *(container, "--async-output", f"s3://{BUCKET}/out/"),
        *("--async-failure", f"s3://{BUCKET}/failed", "--s3-endpoint-url", s3.url),
        environment=s3.environment(),
    ) as running:
        yield running


def written(s3: S3Server, url: str) -> tuple[bytes, str]:
    """Wait for an object."""
    key = url.removeprefix(f"s3://{BUCKET}/")
    client = s3.client()

    def there() -> bool:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=key)
        return any(one["Key"] == key for one in found.get("Contents", ()))

    wait_for(there, 20, f"no object {key}")
    client.close()
    return s3.read(key)


def ask(later: Emulated, **members: Any) -> dict[str, Any]:
    return later.runtime.invoke_endpoint_async(EndpointName="mine", **members)


def test_an_input_in_s3_is_answered_in_s3(later: Emulated, s3: S3Server) -> None:
    s3.put("in/one.txt", b"abc")
    answer = ask(
        later,
        InputLocation=f"s3://{BUCKET}/in/one.txt",
        ContentType="text/x",
        Accept="text/y",
        InferenceId="mine",
    )
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert answer["InferenceId"] == "mine"
    assert answer["OutputLocation"] == f"s3://{BUCKET}/out/mine.out"
    content, content_type = written(s3, answer["OutputLocation"])
    came = json.loads(content)
    assert came["size"] == 3
    assert (came["headers"]["content-type"], came["headers"]["accept"]) == ("text/x", "text/y")
    assert content_type == "application/json"


@pytest.mark.parametrize("key", ["what?.png", "a#b", "a%20b", "a b+c;d", "two//s", "/lead"])
def test_a_key_is_taken_as_it_is(key: str) -> None:
    """As S3 itself and boto3 have it; in the request to S3 it is encoded."""
    assert bucket_and_key(f"s3://bucket/in/{key}") == ("bucket", f"in/{key}")
    assert bucket_and_key(f"s3://bucket/{key}") == ("bucket", key)


@pytest.mark.parametrize("key", ["in/what?.txt", "in/a b+ü 写.txt"])
def test_an_input_with_any_name_is_read(later: Emulated, s3: S3Server, key: str) -> None:
    s3.put("in/what", b"wrong")
    s3.put(key, b"right")
    answer = ask(later, InputLocation=f"s3://{BUCKET}/{key}", CustomAttributes="upper")
    assert written(s3, answer["OutputLocation"])[0] == b"RIGHT"


def test_an_input_in_the_call_goes_where_the_call_says(later: Emulated, s3: S3Server) -> None:
    answer = ask(
        later,
        Body=b"abc",
        CustomAttributes="upper",
        S3OutputPathExtension="deeper/still",
        Filename="two.txt",
    )
    assert answer["OutputLocation"] == f"s3://{BUCKET}/out/deeper/still/two.txt"
    assert written(s3, answer["OutputLocation"])[0] == b"ABC"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"Body": b"x", "CustomAttributes": "status=503"}, "server error (503) from primary"),
        ({"InputLocation": f"s3://{BUCKET}/in/none"}, "NoSuchKey"),
        (
            {"Body": b"x", "CustomAttributes": "sleep=3", "InvocationTimeoutSeconds": 1},
            "Your invocation timed out",
        ),
    ],
)
def test_the_reason_of_a_failure_is_in_s3(
    later: Emulated, s3: S3Server, members: dict[str, Any], reason: str
) -> None:
    answer = ask(later, **members)
    assert answer["FailureLocation"].startswith(f"s3://{BUCKET}/failed/")
    assert reason in written(s3, answer["FailureLocation"])[0].decode()


def test_a_call_without_one_input_is_refused(later: Emulated) -> None:
    for members in ({}, {"Body": b"x", "InputLocation": "s3://a/b"}):
        with pytest.raises(ClientError, match="exactly one of InputLocation and Body"):
            ask(later, **members)
    with pytest.raises(ClientError, match="expected s3://BUCKET/PREFIX"):
        ask(later, InputLocation="https://a/b")


def transform(
    container: Path, source: str | Path, target: str | Path, *options: str, s3: S3Server | None
) -> Any:
    own = ["--s3-endpoint-url", s3.url] if s3 else []
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "sagemaker_emulator",
                "emulate",
                str(container),
                "--ping-every=0.3",
            ),
            *("--transform", str(source), str(target), *options, *own),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=PROJECT,
        env={"PATH": "/usr/bin:/bin", **(s3.environment() if s3 else {})},
    )


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (["--split-type=Line", "--strategy=SingleRecord"], 3),
        (["--split-type=Line", '--env=PARAMETERS={"BatchStrategy": "SINGLE_RECORD"}'], 3),
        (["--split-type=Line", "--strategy=MultiRecord", "--max-payload-mb=1"], 2),
        (["--strategy=MultiRecord"], 1),
    ],
)
def test_a_folder_is_transformed(
    container: Path, tmp_path: Path, options: list[str], requests: int
) -> None:
    """The second and third lines fit into one megabyte together, the first with none of them."""
    lines = [b"a" * 700_000, b"b" * 500_000, b"c" * 500_000]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_bytes(b"\n".join(lines) + b"\n")
    done = transform(
        container,
        *(tmp_path / "in", tmp_path / "out", *options),
        *("--assemble-with=Line", "--max-concurrent=2"),
        s3=None,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = (tmp_path / "out" / "x.txt.out").read_text().splitlines()
    sizes = [json.loads(one)["size"] for one in answers]
    assert len(sizes) == requests
    assert requests == 1 or max(sizes) <= 2**20
    assert sum(sizes) + requests - 1 == 1_700_002 + (requests == 1)
    assert "Completed: 1 of 1 files" in done.stdout


@pytest.mark.slow
def test_a_prefix_in_s3_is_transformed_and_failures_are_counted(
    container: Path, s3: S3Server
) -> None:
    s3.put("batch/1.txt", b"abc")
    s3.put("batch/deep/2?.txt", b"d" * (2**20 + 1))
    s3.put("batch/3#.txt", b"abc")
    done = transform(
        container,
        *(f"s3://{BUCKET}/batch/", f"s3://{BUCKET}/answers", "--max-payload-mb=1"),
        "--content-type=text/plain",
        s3=s3,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    came = json.loads(s3.read("answers/1.txt.out")[0])
    assert came["headers"]["content-type"] == "text/plain"
    assert came["variables"]["SAGEMAKER_BATCH_STRATEGY"] == "MULTI_RECORD"
    assert "deep/2?.txt: failed: a record has 1048577 bytes" in done.stdout
    assert s3.read("answers/3#.txt.out")
    assert "Failed: 1 of 3 files" in done.stdout


def test_input_that_is_not_there_says_so_before_the_start(container: Path, tmp_path: Path) -> None:
    done = transform(container, tmp_path / "none", tmp_path, s3=None)
    assert done.returncode == 2
    assert "expected a folder, a file or s3://…" in done.stderr
