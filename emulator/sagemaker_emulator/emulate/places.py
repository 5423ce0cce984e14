"""Where input comes from and output goes to: a folder here, or a prefix in S3."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sagemaker_emulator.trouble import Trouble

S3 = "s3://"
S3_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.DOTALL)


class Folder:
    """A folder, or a single file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        if self.path.is_file():
            return [self.path.name]
        if not self.path.is_dir():
            raise Trouble(f"there is no {str(self.path)!r}; expected a folder, a file or s3://…")
        files = (one for one in self.path.rglob("*") if one.is_file())
        return sorted(str(one.relative_to(self.path)) for one in files)

    def read(self, name: str) -> bytes:
        return (self.path if self.path.is_file() else self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(content)


class Prefix:
    """The objects in S3 whose keys begin with a prefix."""

    def __init__(self, url: str, client: Any) -> None:
        self.bucket, self.prefix = bucket_and_key(url)
        self.folder = self.prefix[: self.prefix.rfind("/") + 1]
        self.client = client

    def names(self) -> list[str]:
        """Return the objects' keys without the folder of the prefix."""
        listed = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix
        )
        pages = carried_out(list, listed)
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return sorted(key[len(self.folder) :] for key in keys if not key.endswith("/"))

    def read(self, name: str) -> bytes:
        return read_object(self.client, self.bucket, self.folder + name)

    def write(self, name: str, content: bytes) -> None:
        key = f"{self.prefix.rstrip('/')}/{name}".lstrip("/")
        carried_out(self.client.put_object, Bucket=self.bucket, Key=key, Body=content)


def carried_out(work: Any, *arguments: Any, **options: Any) -> Any:
    """Call boto3.

    Raises:
        Trouble: S3 refuses it, or cannot be reached.

    """
    try:
        return work(*arguments, **options)
    except (BotoCoreError, ClientError) as error:
        raise Trouble(
            f"S3: {error}; look at the credentials (AWS_ACCESS_KEY_ID …), the name of the bucket, "
            "and --s3-endpoint-url"
        ) from error


def read_object(client: Any, bucket: str, key: str) -> bytes:
    answer = carried_out(client.get_object, Bucket=bucket, Key=key)
    return bytes(carried_out(answer["Body"].read))


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket and the key or prefix in `s3://bucket/key`.

    Raises:
        Trouble: it is no such URL.

    """
    if not (match := S3_URI.fullmatch(url)):
        raise Trouble(f"{url!r} is no place in S3; expected s3://BUCKET/PREFIX")
    return match[1], match[2] or ""


@cache
def s3_client(endpoint_url: str) -> Any:
    """Return boto3's client; of AWS's own S3, or of AWS_ENDPOINT_URL_S3, where no URL is given."""
    return carried_out(
        boto3.client,
        "s3",
        endpoint_url=endpoint_url or None,
        config=Config(connect_timeout=5, retries={"total_max_attempts": 2}),
    )


Place = Folder | Prefix


def place_of(text: str, endpoint_url: str) -> Place:
    if text.startswith(S3):
        return Prefix(text, s3_client(endpoint_url))
    return Folder(Path(text))
