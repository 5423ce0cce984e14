"""Objects in S3, in which asynchronous calls have their input and output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.trouble import Trouble

S3_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.DOTALL)


def call_s3(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call boto3; raise Trouble where S3 refuses it, or cannot be reached."""
    try:
        return work(*arguments, **options)
    except (BotoCoreError, ClientError) as error:
        raise Trouble(
            f"S3: {error}; look at the credentials (AWS_ACCESS_KEY_ID …), the name of the bucket, "
            "and --s3-endpoint-url"
        ) from error


def read_object(client: Any, bucket: str, key: str) -> bytes:
    answer = call_s3(client.get_object, Bucket=bucket, Key=key)
    return bytes(call_s3(answer["Body"].read))


def split_url(url: str) -> tuple[str, str]:
    """Return the bucket and the key or prefix in `s3://bucket/key`; raise Trouble for another."""
    if not (match := S3_URI.fullmatch(url)):
        raise Trouble(f"{url!r} is no place in S3; expected s3://BUCKET/PREFIX")
    return match[1], match[2] or ""


def s3_client(endpoint_url: str | None) -> Any:
    """Return boto3's client; of AWS's own S3, or of AWS_ENDPOINT_URL_S3, where no URL is given."""
    return call_s3(
        boto3.client,
        "s3",
        endpoint_url=endpoint_url,
        config=Config(connect_timeout=5, retries={"total_max_attempts": 2}),
    )
