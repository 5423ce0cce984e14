"""Turns the errors of boto3 into the dispatcher's, once, by their codes and classes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from botocore import exceptions

from clients.errors import DeadlineExceeded, InferenceError
from dispatcher.errors import ObjectForbidden, ObjectNotFound, StorageFailed, StorageUnavailable

if TYPE_CHECKING:
    from dispatcher.s3.client import Location

# The permission that each call needs; an S3 of another maker has them by the same names.
ACTIONS: Final[Mapping[str, str]] = {
    "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "ListObjectsV2": "s3:ListBucket",
}

AGAIN: Final = "try again in a few seconds"
LATER: Final = "try again; one object has a third of MODEL_SERVER_TIMEOUT"
CREDENTIALS: Final = (
    "check the container's AWS credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_SESSION_TOKEN, or its IAM role"
)
KEY: Final = "check the key: it is the whole path in the bucket, and upper and lower case differ"

Row = tuple[type[InferenceError], str, str]

# By boto3's exceptions, the first that fits: the error, its message and its hint.
BY_CLASS: Final[Mapping[tuple[type[Exception], ...], Row]] = {
    (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError): (
        DeadlineExceeded,
        "S3 did not answer in time for {at}",
        LATER,
    ),
    (
        exceptions.IncompleteReadError,
        exceptions.ResponseStreamingError,
        exceptions.FlexibleChecksumError,
    ): (StorageUnavailable, "the download of {at} broke off", AGAIN),
    (exceptions.HTTPClientError, exceptions.ConnectionError): (
        StorageUnavailable,
        "S3 cannot be reached for {at} ({code})",
        f"{AGAIN}; if it stays so, check AWS_ENDPOINT_URL_S3 and the network",
    ),
    (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
        exceptions.NoAuthTokenError,
    ): (StorageFailed, "there are no usable AWS credentials for {at} ({code})", CREDENTIALS),
    (exceptions.BotoCoreError, ValueError): (  # the second of an address that is none
        StorageFailed,
        "the call of S3 for {at} failed ({code})",
        "check AWS_ENDPOINT_URL_S3, AWS_REGION and the name of the bucket",
    ),
}

# By the codes of S3's answers. (One without a body has its status in the place of the code.)
MISSING_KEY: Final[Row] = (ObjectNotFound, "the bucket {bucket!r} has no object {key!r}", KEY)
WRONG_KEYS: Final[Row] = (
    StorageFailed,
    "S3 does not accept the container's AWS credentials ({code})",
    CREDENTIALS,
)
FAILED: Final[Row] = (StorageUnavailable, "S3 failed for {at} ({code})", AGAIN)
REFUSED: Final[Row] = (
    StorageFailed,
    "S3 refused the request for {at} ({code})",
    "the code is in the list of S3's error codes",
)
BY_CODE: Final[Mapping[str, Row]] = {
    "NoSuchBucket": (
        ObjectNotFound,
        "there is no bucket {bucket!r} in S3",
        "check the bucket's name",
    ),
    **dict.fromkeys(("NoSuchKey", "NotFound", "404"), MISSING_KEY),
    **dict.fromkeys(
        (
            *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"),
            *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"),
        ),
        WRONG_KEYS,
    ),
    **dict.fromkeys(("SlowDown", "RequestTimeout"), FAILED),
    "InvalidObjectState": (
        ObjectForbidden,
        "S3 cannot read {at} now ({code})",
        "it is archived: restore it (`aws s3api restore-object`), or copy it to another class",
    ),
}
PLAIN: Final = (MISSING_KEY, WRONG_KEYS)  # to which S3's own text adds nothing
MOST_TEXT: Final = 400
NAMED_RIGHT: Final = re.compile(r"not authorized to perform: (\S+)(?: on resource: (\S+))?")
REGION_HEADER: Final = "x-amz-bucket-region"


def translate_error(
    error: Exception, location: Location, region: str, secrets: Collection[str]
) -> Exception:
    """Return the error to raise for one of boto3's; any other is returned as it is."""
    if isinstance(error, exceptions.ClientError):
        return explain_refusal(error, location, region, secrets)
    for kinds, row in BY_CLASS.items():
        if isinstance(error, kinds):
            return make_error(row, location, type(error).__name__)
    return error


def make_error(row: Row, location: Location, code: str, text: str = "") -> InferenceError:
    kind, message, hint = row
    values = {"at": location, "bucket": location.bucket, "key": location.key, "code": code}
    return kind(message.format_map(values) + (f": {text}" if text else ""), hint=hint)


def explain_refusal(
    error: exceptions.ClientError, location: Location, region: str, secrets: Collection[str]
) -> InferenceError:
    """Return the error for an answer of S3 that is not 2xx."""
    answer: Mapping[str, Any] = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    about = answer.get("ResponseMetadata", {})
    status, headers = about.get("HTTPStatusCode", 0), about.get("HTTPHeaders", {})
    # The bucket's own, where the answer names it
    home = str(answer.get("Error", {}).get("Region") or headers.get(REGION_HEADER, ""))
    if home not in {"", region} and status != HTTPStatus.FORBIDDEN:
        return StorageFailed(
            f"the bucket {location.bucket!r} is in the region {home}; the container asks in "
            f"{region}",
            hint=f"set AWS_REGION={home}",
        )
    text = own_text(answer, secrets)
    if code in {"AccessDenied", "Forbidden", str(HTTPStatus.FORBIDDEN.value)}:
        return forbidden(error.operation_name, code, location, text)
    other = FAILED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else REFUSED
    row = BY_CODE.get(code, other)
    return make_error(row, location, code or str(status), "" if row in PLAIN else text)


def own_text(answer: Mapping[str, Any], secrets: Collection[str]) -> str:
    """Return what S3 says itself, on one line, without credentials that it may quote."""
    text = " ".join(str(answer.get("Error", {}).get("Message", "")).split())[:MOST_TEXT]
    for secret in secrets:
        text = text.replace(secret, "…")
    return text.rstrip(".")


def forbidden(operation: str, code: str, location: Location, text: str) -> ObjectForbidden:
    """Return the error for a right that lacks: the one that S3 names, else that of the call."""
    action = ACTIONS.get(operation, operation)
    key = "" if operation == "ListObjectsV2" else f"/{location.key}"
    resource = f"arn:aws:s3:::{location.bucket}{key}"
    if named := NAMED_RIGHT.search(text):
        action, resource = named[1], named[2] or resource
    wish = "remove the explicit deny of" if "explicit deny" in text else "allow"
    hint = f"{wish} {action} on {resource} for the container's user or role"
    if not named and action == "s3:GetObject":
        hint += (
            "; S3 says the same of a missing object to those without s3:ListBucket, and of a "
            "bucket whose requester pays"
        )
    return ObjectForbidden(
        f"S3 does not permit {action} for {location} ({code})" + (f": {text}" if text else ""),
        hint=hint,
    )
