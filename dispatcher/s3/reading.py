"""Reads the objects that requests name, a few at a time.

A request waits for its objects before it takes a slot, so that a slow S3 slows only those that use
it. Two things are bounded: how many calls of S3 run at a time, and how many objects are in memory.
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
from dispatcher.s3.client import S3, Location
from dispatcher.settings import S3_AT_A_TIME, Settings
from dispatcher.telemetry.request_log import RequestRecord

GRACE_S = 0.2  # for S3's own, more specific error
# What objects in memory are for: requests that wait for a slot, the next calls of those that have
# one, and calls that run. Up to each stage there are 1, 2 and 3 times as many as are read at a
# time: those who wait leave room for those whom they wait for.
WAITING, AHEAD, RUNNING = range(3)
JSON_TYPE = "application/json"

T = TypeVar("T")


class Objects:
    """Calls S3 in threads of its own, for all requests of a worker."""

    def __init__(self, settings: Settings) -> None:
        self.s3, self.most = S3.of(settings), settings.s3_max_object
        self.at_a_time = S3_AT_A_TIME
        self.held = [0, 0, 0]
        """How many objects are in memory, by their stages."""
        self.freed = threading.Condition()
        """Guards `held` and what the requests read."""
        self._waiting = threading.BoundedSemaphore(settings.queue + self.at_a_time)
        self._pool = ThreadPoolExecutor(self.at_a_time, thread_name_prefix="s3")

    def has_room(self, count: int, stage: int) -> bool:
        """Whether further objects of a stage may be in memory."""
        return all(
            sum(self.held[: upto + 1]) + count <= (upto + 1) * self.at_a_time
            for upto in range(stage, RUNNING + 1)
        )

    def get(self, location: Location, deadline: float) -> ObjectRead[bytes]:
        """Begin to read an object."""
        return self._begin(location, deadline, lambda at: self.s3.get(location, at, self.most))

    def put(self, location: Location, text: str, deadline: float) -> ObjectRead[None]:
        """Begin to write a text of JSON."""
        content = text.encode()
        return self._begin(
            location, deadline, lambda at: self.s3.put(location, content, JSON_TYPE, at)
        )

    def _begin(
        self, location: Location, deadline: float, call: Callable[[float], T]
    ) -> ObjectRead[T]:
        # The time in the queue counts too: where S3 hangs, nobody waits for two timeouts.
        until = min(deadline, time.monotonic() + self.s3.timeout)
        return ObjectRead(location, until, self._pool.submit(call, until))

    @contextmanager
    def place_to_wait(self) -> Iterator[None]:
        """Hold one of the places of requests that wait for S3."""
        if not self._waiting.acquire(blocking=False):
            raise TooManyRequests(
                "too many requests wait for S3", hint="try again after Retry-After seconds"
            )
        try:
            yield
        finally:
            self._waiting.release()


@dataclass(eq=False)
class ObjectRead(Generic[T]):
    """A call of S3 that runs, or waits for its turn; `users` payloads of a request need it."""

    location: Location
    until: float
    future: Future[T]
    users: int = 0
    stage: int = WAITING

    def result(self, deadline: float) -> T:
        """Return its result."""
        left = min(deadline, self.until + GRACE_S) - time.monotonic()
        try:
            return self.future.result(max(0.0, left))
        except (TimeoutError, CancelledError):
            self.future.cancel()
            raise DeadlineExceeded(
                f"S3 took too long for {self.location}",
                hint="try again; one object has a third of MODEL_SERVER_TIMEOUT",
            ) from None
        except InferenceError as error:
            raise copy(error) from None  # several threads may raise it


@dataclass(eq=False)
class Stored:
    """A payload whose picture or text is in S3."""

    location: Location
    others: Mapping[str, Any]
    reads: Reads
    call: ObjectRead[bytes] | None = None

    def content(self, deadline: float) -> bytes:
        """Return the object's content; begin to read it where that was not done."""
        self.reads.begin([self], deadline, RUNNING, until=deadline)
        if self.call is None:
            raise DeadlineExceeded(
                f"S3 took too long for {self.location}: other objects left no room for it",
                hint="send fewer requests with objects of S3 at a time",
            )
        return self.call.result(deadline)


@dataclass(eq=False)
class Reads:
    """What one request reads from S3: an object once for all payloads that need it meanwhile."""

    objects: Objects
    record: RequestRecord
    _calls: dict[Location, ObjectRead[bytes]] = field(default_factory=dict)

    def begin(
        self, payloads: Sequence[Stored], deadline: float, stage: int, *, until: float = 0.0
    ) -> bool:
        """Begin to read what is not being read yet; return whether there was room for it.

        Args:
            payloads: that belong together; at most as many as are read at a time.
            deadline: for the objects.
            stage: that they are in from now on.
            until: how long to wait for room, for all of them together.

        """
        objects = self.objects

        def fit() -> bool:
            missing = {one.location for one in payloads if one.call is None} - self._calls.keys()
            return objects.has_room(len(missing), stage)

        with objects.freed:
            if not objects.freed.wait_for(fit, max(0.0, until - time.monotonic())):
                return False
            for one in payloads:
                if one.call is None:
                    if one.location not in self._calls:
                        self._calls[one.location] = objects.get(one.location, deadline)
                        objects.held[WAITING] += 1
                    one.call = self._calls[one.location]
                    one.call.users += 1
                if one.call.stage < stage:
                    objects.held[one.call.stage] -= 1
                    objects.held[stage] += 1
                    one.call.stage = stage
            objects.freed.notify_all()
        return True

    def wait(self, payloads: Sequence[Stored], deadline: float, stage: int) -> None:
        """Wait until the objects were read, or were not: `content` says which."""
        since = time.monotonic()
        self.begin(payloads, deadline, stage, until=deadline)
        for one in payloads:
            if one.call:
                with suppress(InferenceError):
                    one.call.result(deadline)
        self.record.s3 += time.monotonic() - since

    def free(self, payloads: Iterable[Stored]) -> None:
        """Free the objects that payloads have used, and no other one needs."""
        with self.objects.freed:
            for one in payloads:
                call, one.call = one.call, None
                if call:
                    call.users -= 1
                    if not call.users:
                        self._free(call)

    def close(self) -> None:
        """Free all objects, when the response was sent or the request has failed."""
        with self.objects.freed:
            for call in list(self._calls.values()):
                self._free(call)

    def _free(self, call: ObjectRead[bytes]) -> None:
        if self._calls.get(call.location) is call:  # else `close` has freed it
            del self._calls[call.location]
            call.future.cancel()
            self.objects.held[call.stage] -= 1
            self.objects.freed.notify_all()


def free(stored: Sequence[Stored]) -> None:
    """Free the objects of payloads of one request."""
    if stored:
        stored[0].reads.free(stored)


def error_of_s3(stored: Sequence[Stored]) -> InferenceError | None:
    """Return why an object was not read; then no other error of its request matters."""
    for one in stored:
        try:
            if one.call:
                one.call.result(0)
        except InferenceError as error:
            return error
    return None


def wait_for_objects(first: Stored, deadline: float, *, alone: bool) -> None:
    """Wait for the first object of a request before it takes a slot.

    Args:
        first: the object. (More of them would wait for others while they keep others waiting.)
        deadline: for it.
        alone: whether it is the only one.

    Raises InferenceError: too many requests wait for S3; the only object was not read, or none was
    until the deadline.

    """
    with first.reads.objects.place_to_wait():
        first.reads.wait([first], deadline, WAITING)
    if alone or time.monotonic() >= deadline:
        first.content(deadline)


def ahead(
    items: Iterable[T],
    payloads: Callable[[T], Sequence[Stored]],
    deadline: Callable[[], float],
) -> Iterator[tuple[float, T]]:
    """Yield each item when its objects were read, and begin to read those of the next ones.

    Args:
        items: of a request.
        payloads: returns those of an item, at most as many as are read at a time.
        deadline: returns the one for the next item, which is yielded with it: what the item waits
            for S3 counts too.

    """
    left, window = iter(items), deque[T]()
    while True:
        until = deadline()
        count = sum(len(payloads(one)) for one in window)
        for item in left:
            window.append(item)
            count += len(mine := payloads(item))
            if not mine or count >= 2 * mine[0].reads.objects.at_a_time:
                break
        if not window:
            return
        for item in window:
            # Only the first one waits for room, while nothing is held that is not in use.
            if (mine := payloads(item)) and not mine[0].reads.begin(mine, until, AHEAD):
                break
        if mine := payloads(item := window.popleft()):
            mine[0].reads.wait(mine, until, AHEAD)
        yield until, item
