"""What a client can read about a request besides its payload, and send back."""

from __future__ import annotations

import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from clients.errors import AskFailed, BadPayload, DeadlineExceeded, InferenceError
from clients.tensors.quoting import brief

T = TypeVar("T")

MOST_RESULTS = 1000  # of one payload, from a client that gives any number of them
SEQUENCE_NAMES = ("sequence_id", "sequence_start", "sequence_end")  # as in Triton's protocol


@dataclass(frozen=True)
class Media:
    """A picture, a sound, a text or another file that was sent raw, not in JSON."""

    kind: str  # "picture", "audio" or "text"; "file" where the content type names none of them
    content: bytes | str  # of the file, or the text
    file: bytes = b""  # the file of a text
    refusal: Exception | None = None  # for a model that takes no file of any type


@dataclass(frozen=True)
class SentRows:
    """The rows of a table that was sent, each a list of cells; there is at least one."""

    rows: Sequence[Sequence[Any]]
    header: bool | None = None  # whether the first row has the names; `None` where nobody says so
    of_csv: bool = True  # whether all cells are texts; else they are values of JSON
    file: bytes = b""  # that of CSV

    def by_name(self, known: Sequence[str]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return the names of the cells in a row, and the rows below the header, if there is one.

        A row without a header has the `known` names in their order, or the first of them.

        Raises BadPayload: the header has another name, or one twice; or there is nothing below it.
        """
        first = [cell.strip() if isinstance(cell, str) else "" for cell in self.rows[0]]
        is_header = self.header
        if is_header is None:
            is_header = self.of_csv and {*first} <= {*known}
        if not is_header:
            return known[: len(first)], self.rows
        unknown = {*first} - {*known}
        if unknown or len({*first}) < len(first):
            what = f"{brief(min(unknown))}, which no column is" if unknown else "a name twice"
            raise BadPayload(f"the header has {what}", hint=f"columns: {', '.join(known)}")
        if len(self.rows) == 1:
            raise BadPayload("there is no row below the header", hint="send one at least")
        return first, self.rows[1:]


class Span(ABC):
    """A part of a request's trace; times are on the clock of `time.monotonic()`."""

    headers: Sequence[tuple[str, str]] = ()
    """What another server is sent, so that its own spans become children of this one."""

    @abstractmethod
    def begin(self, name: str, at: float, model: str = "", *, remote: bool = False) -> Span | None:
        """Begin a child that is about a model, which any thread may do.

        `None` where it is not recorded; `remote` where it waits for another server.
        """

    @abstractmethod
    def end(self, at: float) -> None:
        """End it; once more does nothing."""

    @abstractmethod
    def add(self, name: str, begun: float, ended: float) -> None:
        """Add a child that is over."""


current_span: ContextVar[Span | None] = ContextVar("span", default=None)


@contextmanager
def part_of_trace(name: str, model: str) -> Iterator[None]:
    """Put what is timed inside the block below a span of its own, where there is a trace."""
    outer = current_span.get()
    span = outer and outer.begin(name, time.monotonic(), model)
    token = current_span.set(span)
    try:
        yield
    finally:
        current_span.reset(token)
        if span:
            span.end(time.monotonic())


@dataclass
class Timings:
    """The seconds that a request has spent in each phase; where it has a trace, its spans.

    The phases of this project's clients are `decode`, `inference` and `postprocess`. In a class of
    an author `decode` is what `Client.picture` takes, and `class` all else outside of Triton.
    """

    seconds: dict[str, float] = field(
        default_factory=lambda: {"decode": 0.0, "inference": 0.0, "postprocess": 0.0}
    )
    span: Span | None = field(default_factory=current_span.get)
    _since: float = 0.0
    _phase: str = "decode"
    _call: Span | None = None

    def add(self, other: Timings) -> None:
        """Add the seconds of another one."""
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def asked(self, other: Timings) -> None:
        """Add the phases of a client that was asked."""
        self.add(other)
        self._since = time.monotonic()
        if other.span:
            other.span.end(self._since)

    def of_asked(self, model: str) -> Timings:
        """Return the timings of a client that is asked now."""
        return Timings(span=self.span and self.span.begin(f"ask {model}", self._since, model))

    def begin(self, *, in_class: bool = False) -> None:
        """Begin the first phase: payloads are read, or the class of an author runs."""
        self._since, self._phase = time.monotonic(), "class" if in_class else "decode"

    def call(self, model: str) -> None:
        """End a phase: Triton is asked now, until the next `lap`."""
        self.lap()
        if self.span:
            self._call = self.span.begin(f"infer {model}", self._since, model, remote=True)

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """What Triton is sent with the run that has begun."""
        return self._call.headers if self._call else ()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count what is done inside the block as decoding, in the class of an author too."""
        in_class = self._phase == "class"
        if in_class:
            self.lap()
        try:
            yield
        finally:
            if in_class:
                self.lap("decode")

    def lap(self, phase: str = "") -> None:
        """Add the time since the last call to a phase; none named means the client's own work."""
        now = time.monotonic()
        begun, self._since = self._since, now
        phase = phase or self._phase
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - begun
        if phase == "inference" and self._phase == "decode":
            self._phase = "postprocess"
        if self._call:
            self._call.end(now)
            self._call = None
        elif self.span and begun:
            self.span.add(phase, begun, now)


@dataclass
class Once:
    """Decodes a value of a payload once for several clients.

    The key is the value's `id`, because comparing pictures of 20 MB would cost more. The value is
    kept beside its result, so that no other object gets the same `id`.
    """

    _made: dict[int, tuple[object, Any]] = field(default_factory=dict)
    _locks: dict[int, threading.Lock] = field(default_factory=dict)

    def __call__(self, value: object, make: Callable[[], T]) -> T:
        """Return what `make` returned for this object the first time, or call it now.

        Raises DeadlineExceeded: another thread calls it, and does not end within the deadline.
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


@dataclass
class SequencePart:
    """A request's part in a sequence, which a stateful model keeps apart from others."""

    identity: int | str  # what the caller calls it: a number from 1 or a text
    start: bool = False  # whether it begins with this request
    end: bool = False  # whether it ends with it
    # The name of the caller's API key, or nothing: equal identities of two owners are two sequences
    owner: str = ""
    session: bool = False  # whether `identity` is a session of the hosting service
    # The models that were asked for it, with the seconds for which each keeps a sequence
    asked: dict[str, float] = field(default_factory=dict)


class Stream(Iterator[T]):
    """The answers of a model that gives any number of them to one request."""

    @abstractmethod
    def close(self) -> None:
        """Cancel what is still to come; any thread may call this."""


@dataclass(frozen=True)
class Request:
    """One request without its payload. Clients read it as `self.request`."""

    parameters: Mapping[str, Any] = field(default_factory=dict)  # of all declared ones, checked
    version: str = ""  # of the model; nothing means the latest
    deadline: float = math.inf  # when its time is used up, by `time.monotonic()`
    request_id: str = ""  # in the log and in the answer
    attributes: Mapping[str, str] = field(default_factory=dict)  # the caller's custom ones
    # Those that a client sends back, in the header `X-Amzn-SageMaker-Custom-Attributes`
    response_attributes: dict[str, str] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)
    once: Once | None = None  # where several clients are asked about one payload
    sequence: SequencePart | None = None  # of a stateful model, if the caller names one
    streams: MutableSequence[Stream[Any]] = field(default_factory=list)  # answers still to come
    payloads: Sequence[Any] = ()  # what the client was given: one payload, or those of a batch
    # How many tokens each text had that a model was run with, of all batches
    tokens: MutableSequence[int] = field(default_factory=list)
    chain: tuple[str, ...] = ()  # the models whose classes have asked for this one, in order
    draws: bool = False  # whether the answer will be a picture, by the client's `draw`

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the `self.request` of all clients that are called inside the block."""
        token = current.set(self)
        try:
            yield
        finally:
            current.reset(token)

    @contextmanager
    def cancelling(self, answers: Iterator[Any]) -> Iterator[None]:
        """Let `cancel` reach these answers inside the block; cancel them at its end."""
        if isinstance(answers, Stream):
            self.streams.append(answers)
        try:
            yield
        finally:
            if isinstance(answers, Stream):
                self.streams.remove(answers)
                answers.close()

    def cancel(self) -> bool:
        """Cancel the answers that are still to come; return whether there are any."""
        streams = list(self.streams)
        for one in streams:
            one.close()
        return bool(streams)

    def time_left(self) -> float:
        """Return the seconds until the deadline.

        Raises DeadlineExceeded: it has passed.
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


def trace_headers() -> Sequence[tuple[str, str]]:
    """Return what Triton is sent about the trace of this thread's request."""
    request = current.get(None)
    return request.timings.headers if request else ()


def time_to_wait() -> float:
    """Return the seconds that this thread may wait: until its request's deadline.

    Raises DeadlineExceeded: it has passed.
    """
    request = current.get(None)
    return min(request.time_left(), threading.TIMEOUT_MAX) if request else threading.TIMEOUT_MAX


def join_results(
    result: Any,
    refusal: type[InferenceError] = AskFailed,
    hint: str = "ask it for less, by its parameters",
) -> Any:
    """Return a result; all results of a client that gives any number, in a list."""
    if not isinstance(result, Iterator):
        return result
    try:
        found = list(itertools.islice(result, MOST_RESULTS + 1))
    finally:
        if close := getattr(result, "close", None):
            close()
    if len(found) > MOST_RESULTS:
        raise refusal(f"the model gave more than {MOST_RESULTS} results to one payload", hint=hint)
    return found
