"""Reads the objects that requests name, a few at a time, each once for a request.

A request waits for its objects before it takes a slot, so that a slow S3 slows only those that use
it. Two things are bounded: how many calls of S3 run at a time, and how many objects are in memory.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from clients.errors import DeadlineExceeded, InferenceError
from dispatcher.errors import TooManyRequests
from dispatcher.observability.request_log import RequestRecord
from dispatcher.settings import Settings
from dispatcher.storage.s3 import S3, Location

GRACE_S = 0.2  # for S3's own, more specific error
IN_MEMORY = 3  # times as many objects as are read at a time: in models, waiting and being read
JSON_TYPE = "application/json"

T = TypeVar("T")


class Objects:
    """Calls S3 in threads of its own.

    Args:
        s3: the client.
        at_a_time: how many calls run.
        most: bytes of the largest object.
        waiting: how many requests may wait for their objects.

    """

    def __init__(self, s3: S3, at_a_time: int, most: int, waiting: int) -> None:
        self.s3, self.at_a_time, self.most = s3, at_a_time, most
        self.room = Room(IN_MEMORY * at_a_time)
        self._waiting = threading.BoundedSemaphore(waiting + at_a_time)
        self._pool = ThreadPoolExecutor(at_a_time, thread_name_prefix="s3")

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings describe."""
        return cls(
            S3.of(settings), settings.s3_max_concurrency, settings.s3_max_object, settings.queue
        )

    def get(self, location: Location, deadline: float) -> Call[bytes]:
        """Begin to read an object."""
        return self._begin(location, deadline, lambda at: self.s3.get(location, at, self.most))

    def put(self, location: Location, text: str, deadline: float) -> Call[None]:
        """Begin to write a text of JSON."""
        content = text.encode()
        return self._begin(
            location, deadline, lambda at: self.s3.put(location, content, JSON_TYPE, at)
        )

    def _begin(self, location: Location, deadline: float, call: Callable[[float], T]) -> Call[T]:
        # The time in the queue counts too: where S3 hangs, nobody waits for two timeouts.
        until = min(deadline, time.monotonic() + self.s3.timeout)
        return Call(location, until, self._pool.submit(call, until))

    @contextmanager
    def place_to_wait(self) -> Iterator[None]:
        """Hold one of the places of requests that wait for S3.

        Raises:
            TooManyRequests: there is none.

        """
        if not self._waiting.acquire(blocking=False):
            raise TooManyRequests(
                "too many requests wait for S3", hint="try again after Retry-After seconds"
            )
        try:
            yield
        finally:
            self._waiting.release()


class Call(Generic[T]):
    """A call of S3 that runs, or waits for its turn."""

    def __init__(self, location: Location, until: float, future: Future[T]) -> None:
        self.location, self.until, self.future = location, until, future

    def result(self, deadline: float) -> T:
        """Return its result.

        Raises:
            InferenceError: one of those of `S3`.

        """
        left = min(deadline, self.until + GRACE_S) - time.monotonic()
        try:
            return self.future.result(max(0.0, left))
        except (TimeoutError, CancelledError):
            self.future.cancel()
            raise DeadlineExceeded(
                f"S3 took too long for {self.location}",
                hint="try again; S3_TIMEOUT is the time for one object",
            ) from None
        except InferenceError as error:
            raise copy(error) from None  # several threads may raise it


class Room:
    """The objects that may be in memory."""

    def __init__(self, most: int) -> None:
        self.left = most
        self._freed = threading.Condition()

    def take(self, count: int, until: float) -> bool:
        """Take places for some objects, all together; false where there were none in time."""
        if not count:
            return True
        with self._freed:
            wait = max(0.0, until - time.monotonic())
            took = self._freed.wait_for(lambda: self.left >= count, wait)
            self.left -= count if took else 0
            return took

    def give(self, count: int) -> None:
        """Give places back."""
        with self._freed:
            self.left += count
            self._freed.notify_all()


@dataclass
class Shared:
    """An object that is being read for one or more payloads of a request."""

    call: Call[bytes]
    users: int = 0


@dataclass(eq=False)
class Stored:
    """A payload whose picture or text is in S3.

    Args:
        location: of the object.
        others: the payload's other fields.
        reads: of its request.

    """

    location: Location
    others: Mapping[str, Any]
    reads: Reads
    shared: Shared | None = None
    begun: bool = False

    def __post_init__(self) -> None:
        self.reads.expect(self.location)

    def content(self, deadline: float) -> bytes:
        """Return the object's content.

        Raises:
            InferenceError: one of those of `S3`.

        """
        if self.shared is None:
            self.reads.begin([self], deadline)
        if (shared := self.shared) is None:
            raise DeadlineExceeded(
                f"S3 took too long for {self.location}: other objects left no room for it",
                hint="send fewer requests with objects of S3 at a time",
            )
        return shared.call.result(deadline)

    @property
    def error(self) -> InferenceError | None:
        """Why the object has not been read, where that is known already."""
        try:
            if self.shared:
                self.shared.call.result(0)
        except InferenceError as error:
            return error
        return None


@dataclass(eq=False)
class Reads:
    """What one request reads from S3.

    Args:
        objects: reads them.
        record: gets the seconds that were waited for.

    """

    objects: Objects
    record: RequestRecord
    _under_way: dict[Location, Shared] = field(default_factory=dict)
    _to_come: Counter[Location] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, location: Location) -> None:
        """Note that a payload, perhaps of another model, has an object that is to be read."""
        with self._lock:
            self._to_come[location] += 1

    def begin(
        self, payloads: Sequence[Stored], deadline: float, until: float | None = None
    ) -> bool:
        """Begin to read what is not being read yet; return whether there was room for it.

        Args:
            payloads: that belong together; at most as many as are read at a time.
            deadline: for the objects.
            until: how long to wait for room; by default until the deadline.

        """
        asked = {one.location for one in payloads if one.shared is None}
        new = asked - self._under_way.keys()
        if not self.objects.room.take(len(new), until=0):
            with self._lock:
                for location in self._kept().difference(asked):
                    self._free(location)
            if not self.objects.room.take(len(new), deadline if until is None else until):
                return False
        taken = len(new)
        with self._lock:
            for one in payloads:
                if one.shared is not None:
                    continue
                if (shared := self._under_way.get(one.location)) is None:
                    shared = Shared(self.objects.get(one.location, deadline))
                    self._under_way[one.location] = shared
                    taken -= 1
                shared.users += 1
                self._to_come[one.location] -= not one.begun
                one.shared, one.begun = shared, True
        self.objects.room.give(taken)  # for what other threads have begun, or ended, meanwhile
        return True

    def wait(self, payloads: Sequence[Stored], deadline: float) -> None:
        """Wait until the objects were read, or were not: `content` says which."""
        since = time.monotonic()
        self.begin(payloads, deadline)
        for one in payloads:
            if one.shared:
                try:
                    one.shared.call.result(deadline)
                except InferenceError:
                    continue
        self.record.s3 += time.monotonic() - since

    def done(self, payloads: Iterable[Stored]) -> None:
        """Free objects that are not used any more; keep some that other models are yet to use."""
        with self._lock:
            for one in payloads:
                shared, one.shared = one.shared, None
                if shared:
                    shared.users -= 1
                    if shared.users or self._under_way.get(one.location) is not shared:
                        continue
                    is_full = len(self._kept()) > self.objects.at_a_time
                    if is_full or self._to_come[one.location] <= 0:
                        self._free(one.location)

    def _kept(self) -> set[Location]:
        return {location for location, one in self._under_way.items() if not one.users}

    def close(self) -> None:
        """Free all objects, when the response was sent or the request has failed."""
        with self._lock:
            for location in list(self._under_way):
                self._free(location)

    def _free(self, location: Location) -> None:
        self._under_way.pop(location).call.future.cancel()
        self.objects.room.give(1)


def ahead(
    items: Iterable[T],
    payloads: Callable[[T], Sequence[Stored]],
    deadline: Callable[[], float],
) -> Iterator[T]:
    """Yield each item when its objects were read, and begin to read those of the next ones.

    Args:
        items: of a request.
        payloads: returns those of an item, at most as many as are read at a time.
        deadline: returns the one for the next item.

    """
    left, window = iter(items), deque[T]()
    while True:
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
            if (mine := payloads(item)) and not mine[0].reads.begin(mine, deadline(), until=0):
                break
        if mine := payloads(item := window.popleft()):
            mine[0].reads.wait(mine, deadline())
        yield item
