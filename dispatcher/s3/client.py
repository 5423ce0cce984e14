"""The S3 client: get, download, put and list, with errors in the dispatcher's own words.

boto3 is imported at the first call, so a container that uses no S3 never loads it. A text of S3's
own is passed on without the credentials that it may quote.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from clients.errors import DeadlineExceeded, InferenceError
from dispatcher.errors import ObjectTooLarge, StorageUnavailable
from dispatcher.settings import S3_AT_A_TIME, S3_SHARE
from dispatcher.settings.readers import S3_URI

if TYPE_CHECKING:  # the import takes half a second
    from dispatcher.settings import Settings

ATTEMPTS = 3
CONNECT_S = 5.0
LATER = "try again; one object has a third of MODEL_SERVER_TIMEOUT"
CHUNK = 2**16
MIB = 2**20

# Above debug: botocore's debug log has the headers of requests, with signatures and tokens.
LOGGERS = ("boto3", "botocore", "s3transfer", "urllib3")

one_client = threading.Lock()
call: ContextVar[tuple[Location, float]] = ContextVar("call")


@dataclass(frozen=True, order=True)
class Location:
    """An object, or a prefix of keys, in a bucket."""

    bucket: str
    key: str = ""

    @classmethod
    def of(cls, uri: object) -> Self | None:
        """Return what `s3://BUCKET/KEY` names; `None` where it is no such text."""
        match = S3_URI.fullmatch(uri) if isinstance(uri, str) else None
        return cls(match[1], match[2] or "") if match else None

    @property
    def server(self) -> str:
        """Who keeps it."""
        return "S3"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True)
class StoredObject:
    """What S3 says about an object."""

    location: Location
    size: int
    etag: str


@dataclass(eq=False)
class S3:
    """Reads and writes objects, from any thread. It must be made after the fork.

    Deadlines are on the clock of `time.monotonic()`. Every method raises, besides what it names:
    ObjectNotFound, ObjectForbidden, StorageUnavailable (try again) and StorageFailed (change a
    setting) of `dispatcher.errors`, and DeadlineExceeded.
    """

    region: str = ""  # empty means boto3's own choice, as that of the server always is
    timeout: float = 20.0  # for one call, in seconds
    connections: int = 10  # that are kept open

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the client that the settings describe."""
        return cls(
            # boto3 reads AWS_DEFAULT_REGION alone; ECS, Lambda and others set this one.
            os.environ.get("AWS_REGION", "").strip(),
            settings.timeout * S3_SHARE,
            S3_AT_A_TIME,
        )

    def get(self, location: Location, deadline: float, most: int) -> bytes:
        """Return the content of an object, in one GET; not a byte of one larger than `most`."""
        with self._call(location, deadline) as client:
            response = client.get_object(Bucket=location.bucket, Key=location.key)
            with closing(response["Body"]):
                if (size := response["ContentLength"]) > most:
                    raise ObjectTooLarge(
                        f"{location} has {size} bytes; at most {most // MIB} MiB are allowed",
                        hint="use a smaller object, or raise MODEL_SERVER_MAX_BODY_MB",
                    )
                return b"".join(pieces_of(response, location, CHUNK))

    def download(self, stored: StoredObject, deadline: float) -> Generator[bytes]:
        """Yield the pieces of an object as it was listed, from one GET.

        botocore compares the checksum that S3 has of it. S3 may be silent for as long as one call
        may take.
        """
        location = stored.location
        with self._call(location, deadline) as client:
            response = client.get_object(Bucket=location.bucket, Key=location.key)
            with closing(response["Body"]):
                if (response["ContentLength"], etag_of(response)) != (stored.size, stored.etag):
                    raise StorageUnavailable(
                        f"{location} has changed since it was listed", hint="try again"
                    )
                for piece in pieces_of(response, location, MIB):
                    yield piece
                    call.set((location, min(deadline, time.monotonic() + self.timeout)))

    def put(self, location: Location, content: bytes, content_type: str, deadline: float) -> None:
        """Write an object; replace one that is there."""
        with self._call(location, deadline) as client:
            client.put_object(
                Bucket=location.bucket, Key=location.key, Body=content, ContentType=content_type
            )

    def list(self, prefix: Location, deadline: float) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with a prefix, in the order of their keys."""
        more: dict[str, str] = {}
        while True:
            with self._call(prefix, deadline) as client:
                page = client.list_objects_v2(Bucket=prefix.bucket, Prefix=prefix.key, **more)
            for one in page.get("Contents", ()):
                location = Location(prefix.bucket, one["Key"])
                yield StoredObject(location, one["Size"], etag_of(one))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    @contextmanager
    def _call(self, location: Location, deadline: float) -> Iterator[Any]:
        """Provide boto3's client for one call; translate its errors."""
        token = call.set((location, min(deadline, time.monotonic() + self.timeout)))
        try:
            yield self.client
        except InferenceError:
            raise
        except Exception as error:
            from dispatcher.s3.errors import translate_error  # noqa: PLC0415  as boto3

            # (Without the cause: its frames hold signed requests.)
            raise translate_error(error, location, self.used_region, self.secrets) from None
        finally:
            call.reset(token)

    @property
    def client(self) -> Any:
        """boto3's client, made once."""
        with one_client:
            return self._client

    @cached_property
    def _client(self) -> Any:
        import boto3  # noqa: PLC0415  see the top
        from botocore.config import Config  # noqa: PLC0415

        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._session = boto3.session.Session(region_name=self.region or None)
        client = self._session.client(
            "s3",
            config=Config(
                connect_timeout=min(CONNECT_S, self.timeout),
                read_timeout=self.timeout,
                max_pool_connections=self.connections,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                # Other servers than AWS's may not know the newer checksums of uploads.
                request_checksum_calculation="when_required",
            ),
        )
        client.meta.events.register("before-send.s3", refuse_late)
        return client

    @property
    def secrets(self) -> set[str]:
        used = self._session.get_credentials() if "_client" in self.__dict__ else None
        return {one for one in used.get_frozen_credentials() if one} if used else set()

    @property
    def used_region(self) -> str:
        """The region that requests are signed for."""
        made = self.__dict__.get("_client")
        return str(made.meta.region_name) if made else self.region


def refuse_late(**_: Any) -> None:
    """Refuse an attempt, the first or a repeated one, whose time is used up."""
    time_left()


def time_left() -> float:
    """Return the seconds until the deadline of this thread's call."""
    location, deadline = call.get()
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded(f"S3 took too long for {location}", hint=LATER)
    return left


def etag_of(answer: Mapping[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')


def pieces_of(response: Mapping[str, Any], location: Location, most: int) -> Iterator[bytes]:
    """Yield the content of an object until the deadline of this thread's call."""
    body, size, came = response["Body"], response["ContentLength"], 0
    while came < size:
        body.set_socket_timeout(time_left())
        if not (piece := body.read(min(most, size - came))):
            raise StorageUnavailable(
                f"the download of {location} broke off after {came} of {size} bytes",
                hint="try again after Retry-After seconds",
            )
        came += len(piece)
        yield piece
    body.read()  # the end, where botocore compares the checksum
