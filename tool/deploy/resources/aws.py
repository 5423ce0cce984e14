"""Calls of AWS, with an error in a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from tool.trouble import Trouble

OWNER = "triton-dispatcher:endpoint"  # the tag on all that a deployment makes; its value is NAME

FIXES = {  # by the code of AWS's error
    "ResourceLimitExceeded": (
        "ask for more in the console under Service Quotas, or take another --instance"
    ),
    "ExpiredToken": "log in again, such as by `aws sso login`",
    "ExpiredTokenException": "log in again, such as by `aws sso login`",
    "InvalidClientTokenId": "look at AWS_ACCESS_KEY_ID, or AWS_PROFILE",
    "UnrecognizedClientException": "look at AWS_ACCESS_KEY_ID, or AWS_PROFILE",
    "SignatureDoesNotMatch": "look at AWS_SECRET_ACCESS_KEY",
    "InvalidSignatureException": "look at AWS_SECRET_ACCESS_KEY",
    "NoSuchBucket": "make the bucket first: `aws s3 mb s3://BUCKET`, or name another by --bucket",
    "RepositoryNotFoundException": "look at the image's name, and at the region",
    "ImageNotFoundException": "look at the image's name and tag: `aws ecr describe-images`",
    "ThrottlingException": "wait a minute, and run the same command again",
}
MOST_SHOWN = 600  # of AWS's own text: some list every type of instance that there is
DENIED = ("AccessDenied", "AccessDeniedException", "403")
DENIED_FIX = "ask for that permission; docs/sagemaker.md lists all that are needed"


class Refused(Trouble):
    """AWS refuses a call.

    Args:
        code: AWS's name for the error.
        text: the sentence.
        status: of the container's own answer; 0 where it was not asked.

    """

    def __init__(self, code: str, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.code, self.status = code, status


class Aws:
    """The clients of one region, as the AWS CLI is configured.

    Args:
        region: empty for that of the configuration.

    """

    def __init__(self, region: str = "") -> None:
        self.given = region
        self.clients: dict[str, Any] = {}

    @property
    def region(self) -> str:
        return str(self.client("sagemaker").meta.region_name)

    @property
    def account(self) -> str:
        return str(self.call("sts", "get_caller_identity")["Account"])

    def client(self, service: str) -> Any:
        """Return boto3's client; one for each service."""
        if service not in self.clients:
            config = Config(connect_timeout=10, retries={"mode": "standard", "max_attempts": 5})
            try:
                self.clients[service] = boto3.client(
                    service, region_name=self.given or None, config=config
                )
            except (BotoCoreError, ValueError) as error:
                raise in_words(service, error) from error
        return self.clients[service]

    def call(self, service: str, operation: str, /, **members: Any) -> Any:
        """Call an operation.

        Raises:
            Refused: AWS refuses it.
            Trouble: AWS cannot be asked.

        """
        try:
            return getattr(self.client(service), operation)(**members)
        except (BotoCoreError, ClientError) as error:
            raise in_words(operation, error) from error

    def every(self, service: str, operation: str, key: str, /, **members: Any) -> Iterator[Any]:
        """Yield what is listed, of all pages."""
        try:
            for page in self.client(service).get_paginator(operation).paginate(**members):
                yield from page.get(key, ())
        except (BotoCoreError, ClientError) as error:
            raise in_words(operation, error) from error


def in_words(what: str, error: Exception) -> Trouble:
    """Return an error of boto3 as a sentence with the fix."""
    if isinstance(error, ClientError):
        code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
        message = message if len(message) <= MOST_SHOWN else f"{message[:MOST_SHOWN]} …"
        fix = DENIED_FIX if code in DENIED else FIXES.get(code, "")
        status = int(error.response.get("OriginalStatusCode", 0))
        text = f"AWS refuses {what} ({code}): {message}{f'; {fix}' * bool(fix)}"
        return Refused(code, text, status)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return Trouble(
            f"there are no credentials for AWS ({error}); run `aws configure`, or set AWS_PROFILE "
            "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, NoRegionError):
        return Trouble("no region is configured; give --region, or set AWS_REGION")
    return Trouble(f"AWS cannot be asked for {what}: {error}")


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_map(tags: list[dict[str, str]]) -> dict[str, str]:
    return {one["Key"]: one["Value"] for one in tags}
