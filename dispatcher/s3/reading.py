"""Reads the objects that requests name, a few at a time.

A request waits for its objects before it takes a slot, so that a slow S3, or a slow host of
pictures, slows only those that use it. What it has read counts among the large bodies of the
worker, as if it had come in its body.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from clients.errors import DeadlineExceeded, InferenceError, TooManyRequests
from dispatcher.codecs.content_types import LargeBodies
from dispatcher.errors import ObjectTooLarge
from dispatcher.model_request import ModelRequest
from dispatcher.s3.client import LATER, S3, Location
from dispatcher.s3.web_pictures import PictureUrl, WebPictures
from dispatcher.settings import S3_AT_A_TIME, Settings
from dispatcher.telemetry.request_log import RequestRecord

GRACE_S = 0.2  # for S3's own, more specific error
JSON_TYPE = "application/json"

T = TypeVar("T")
Item = TypeVar("Item", bound="ModelRequest | Exception")


class Objects:
    """Calls S3 and hosts of pictures in threads of its own, for all requests of a worker."""

    def __init__(self, settings: Settings, bodies: LargeBodies) -> None:
        self.s3, self.web = S3.of(settings), WebPictures(settings.image_url_hosts)
        self.most = settings.max_body_mb * 2**20
        self.at_a_time, self.bodies = S3_AT_A_TIME, bodies
        self._waiting = threading.BoundedSemaphore(settings.queue + self.at_a_time)
        self._pools = {
            kind: ThreadPoolExecutor(self.at_a_time, thread_name_prefix=name)
            for kind, name in ((Location, "s3"), (PictureUrl, "web"))
        }

    def get(
        self, location: Location | PictureUrl, deadline: float, count: Callable[[int], None]
    ) -> ObjectRead[bytes]:
        """Begin to read an object; `count` is called with its size."""

        def read(until: float) -> bytes:
            if isinstance(location, PictureUrl):
                content = self.web.get(location, until, self.most)
            else:
                content = self.s3.get(location, until, self.most)
            count(len(content))
            return content

        return self._begin(location, deadline, read)

    def put(self, location: Location, text: str, deadline: float) -> ObjectRead[None]:
        """Begin to write a text of JSON."""
        content = text.encode()
        return self._begin(
            location, deadline, lambda at: self.s3.put(location, content, JSON_TYPE, at)
        )

    def _begin(
        self, location: Location | PictureUrl, deadline: float, call: Callable[[float], T]
    ) -> ObjectRead[T]:
        # The time in the queue counts too: where S3 hangs, nobody waits for two timeouts.
        until = min(deadline, time.monotonic() + self.s3.timeout)
        return ObjectRead(location, until, self._pools[type(location)].submit(call, until))

    @contextmanager
    def place_to_wait(self) -> Iterator[None]:
        """Hold one of the places of requests that wait for what they name."""
        if not self._waiting.acquire(blocking=False):
            raise TooManyRequests(
                "too many requests wait for objects in S3, or for pictures by URL",
                hint="try again after Retry-After seconds",
            )
        try:
            yield
        finally:
            self._waiting.release()


@dataclass(eq=False)
class ObjectRead(Generic[T]):
    """A call of S3, or of a host of pictures, that runs, or waits for its turn."""

    location: Location | PictureUrl
    until: float
    future: Future[T]

    def result(self, deadline: float) -> T:
        left = min(deadline, self.until + GRACE_S) - time.monotonic()
        try:
            return self.future.result(max(0.0, left))
        except (TimeoutError, CancelledError):
            self.future.cancel()
            said = f"{self.location.server} took too long for {self.location}"
            raise DeadlineExceeded(said, hint=LATER) from None
        except InferenceError as error:
            raise copy(error) from None  # several threads may raise it


@dataclass(eq=False)
class Stored:
    """A payload whose picture or text is in S3, or whose picture is at a URL."""

    location: Location | PictureUrl
    others: Mapping[str, Any]
    reads: Reads
    call: ObjectRead[bytes] | None = None

    def content(self, deadline: float) -> bytes:
        """Return the object's content; begin to read it where that was not done."""
        self.reads.begin([self], deadline)
        if self.call is None:
            raise ValueError("it was not begun")
        return self.call.result(deadline)


@dataclass(eq=False)
class Reads:
    """What one request has read."""

    objects: Objects
    record: RequestRecord  # gets the seconds that were waited for
    _calls: set[ObjectRead[bytes]] = field(default_factory=set)
    _held: int = 0
    _is_closed: bool = False
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, payloads: Iterable[Stored], deadline: float) -> None:
        """Begin to read what is not being read yet."""
        for one in payloads:
            if one.call is None:
                one.call = self.objects.get(one.location, deadline, self._count)
                self._calls.add(one.call)

    def wait(self, payloads: Sequence[Stored], deadline: float) -> None:
        """Wait until the objects were read, or one was not: `content` says which."""
        since = time.monotonic()
        with suppress(InferenceError):
            for place, one in enumerate(payloads):  # a long list leaves turns to other requests
                self.begin(payloads[place : place + self.objects.at_a_time], deadline)
                one.content(deadline)
        self.record.s3 += time.monotonic() - since

    def _count(self, size: int) -> None:
        bodies = self.objects.bodies
        with self._counting:
            if self._held + size > bodies.most:
                raise ObjectTooLarge(
                    f"the objects of the request have more than {bodies.most // 2**20} MiB in all",
                    hint="send fewer in a request, or a line for each: application/jsonlines",
                )
            if not self._is_closed:
                bodies.hold(size)
                self._held += size

    def free(self, payloads: Iterable[Stored]) -> None:
        """Forget the contents of objects that no other payload needs."""
        for one in payloads:
            call, one.call = one.call, None
            if call:
                self._calls.discard(call)
                future = call.future
                if future.done() and not (future.cancelled() or future.exception()):
                    self._forget(len(future.result()))

    def close(self) -> None:
        """Free all objects, when the response was sent or the request has failed."""
        for call in list(self._calls):
            call.future.cancel()
        with self._counting:
            self._is_closed = True
        self._forget(self._held)

    def _forget(self, size: int) -> None:
        with self._counting:
            size = min(size, self._held)  # which was closed meanwhile
            self._held -= size
            self.objects.bodies.hold(-size)


def find_stored(asked: ModelRequest | Exception) -> list[Stored]:
    """Return the payloads of a request that are read for it."""
    payloads = [] if isinstance(asked, Exception) else asked.payloads
    return [one for one in payloads if isinstance(one, Stored)]


def wait_for_objects(stored: Sequence[Stored], deadline: float, *, alone: bool) -> None:
    """Wait for the objects of a request before it takes a slot.

    Raises InferenceError: too many requests wait; the only object, which is `alone`, was not
    read; or another one was not until the deadline.
    """
    reads = stored[0].reads
    with reads.objects.place_to_wait():
        reads.wait(stored, deadline)
    if alone or time.monotonic() >= deadline:
        for one in stored:
            one.content(deadline)


def wait_for_each(items: Iterable[Item], until: float) -> Iterator[Item]:
    """Yield each of several requests when its objects were read, and begin with the next ones.

    A request without objects is yielded as it comes: its body may be large.
    """
    begun = deque[Item]()
    for item in items:
        if mine := find_stored(item):
            mine[0].reads.begin(mine, until)
        begun.append(item)
        while begun and not (mine and len(begun) <= mine[0].reads.objects.at_a_time):
            yield _wait_for(begun.popleft(), until)
    while begun:
        yield _wait_for(begun.popleft(), until)


def _wait_for(item: Item, until: float) -> Item:
    if mine := find_stored(item):
        mine[0].reads.wait(mine, until)
    return item
