"""What belongs to one request besides its payload, from the dispatcher to the client and back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from clients.errors import DeadlineExceeded

T = TypeVar("T")


@dataclass(frozen=True)
class Media:
    """A picture or a text that came as it is, not inside of JSON.

    Args:
        kind: "picture" or "text"; "file" where nobody has said which, and the model takes neither.
        content: the file's bytes, or the text.

    """

    kind: str
    content: bytes | str


@dataclass
class Timings:
    """Seconds that one request has spent in each phase."""

    decode: float = 0.0
    inference: float = 0.0
    postprocess: float = 0.0
    _since: float = 0.0
    _asked: bool = False

    def add(self, other: Timings) -> None:
        """Add what another one has counted, beside or after this one."""
        self.decode += other.decode
        self.inference += other.inference
        self.postprocess += other.postprocess

    def begin(self) -> None:
        """Begin to read payloads."""
        self._since, self._asked = time.monotonic(), False

    def lap(self, *, inference: bool = False) -> None:
        """Count the time since the last call: the model's, or the client's before or after it."""
        now = time.monotonic()
        took, self._since = now - self._since, now
        if inference:
            self.inference += took
            self._asked = True
        elif self._asked:
            self.postprocess += took
        else:
            self.decode += took


@dataclass
class Once:
    """What several clients make of one payload, made by the first of them.

    A key is a value's identity: to compare pictures of 20 MB would cost more. The value is kept
    beside what was made of it, or another one would come to have the same identity.
    """

    _made: dict[int, tuple[object, Any]] = field(default_factory=dict)
    _locks: dict[int, threading.Lock] = field(default_factory=dict)

    def __call__(self, value: object, make: Callable[[], T]) -> T:
        """Return what `make` returned for this very object before, or returns now.

        Raises:
            DeadlineExceeded: another thread is at it, and not done within the time of the request.

        """
        key = id(value)
        lock = self._locks.setdefault(key, threading.Lock())
        if not lock.acquire(timeout=time_to_wait()):
            raise DeadlineExceeded(
                "the time for this request was used up while another model read its payload",
                hint="send smaller payloads, or ask fewer models at a time",
            )
        try:
            if key not in self._made:
                self._made[key] = value, make()
            return cast("T", self._made[key][1])
        finally:
            lock.release()


@dataclass(frozen=True)
class Request:
    """What belongs to one request besides its payload. Clients read it as `self.request`.

    Args:
        parameters: a value for every parameter that the client declares, checked.
        version: the model's version that was asked for; the empty text means the latest.
        deadline: when the time for this request is used up, on the clock of `time.monotonic()`.
        request_id: what the log and the answer call it.
        attributes: the caller's custom attributes, as they came.
        response_attributes: a client may put its own custom attributes here; they go back in the
            header `X-Amzn-SageMaker-Custom-Attributes`.
        timings: where the time went.
        once: set where several clients are asked about the same payload.

    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    deadline: float = math.inf
    request_id: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    response_attributes: dict[str, str] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    once: Once | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the `self.request` of every client that is called inside the block."""
        token = current.set(self)
        try:
            yield
        finally:
            current.reset(token)

    def time_left(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            DeadlineExceeded: there are none left.

        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                "the time for this request was used up before it was done",
                hint="Server-Timing says by what: for `queue` send fewer requests at a time, else "
                "fewer or smaller items in one",
            )
        return left


current: ContextVar[Request] = ContextVar("request")


def time_to_wait() -> float:
    """Return the seconds that this thread may wait for others: until its request's deadline.

    Raises:
        DeadlineExceeded: there are none left.

    """
    request = current.get(None)
    return min(request.time_left(), threading.TIMEOUT_MAX) if request else threading.TIMEOUT_MAX
