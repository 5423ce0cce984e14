"""Asynchronous calls, with a real S3 server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from sagemaker_emulator.emulate.s3 import split_url

from tests.conftest import wait_for
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
    assert split_url(f"s3://bucket/in/{key}") == ("bucket", f"in/{key}")
    assert split_url(f"s3://bucket/{key}") == ("bucket", key)


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
