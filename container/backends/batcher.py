"""Batches inside of one model instance, some of which run at a time.

Triton gives an instance what is queued as soon as it returns. Callers that were answered together
come back within some milliseconds, one by one: the first would be run alone, and all others wait
for it. Here a run waits a moment for those that are expected, and while its requests are answered
and asked anew another one has the cores.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from container.backends.padding import fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE = 2
"""The least runs at a time: one computes while the requests of the other are on their way."""

CORES_OF_A_RUN = 4
"""More cores than these are better given to another run: of texts on 16, four runs at a time had
1.1 to 1.2 times as many answers as two with 16 and 64 callers, and 0.9 with 4; eight 1.04, 1.3 and
0.85; `python -m bench.scale --models bert_base`."""

PATIENCE = 0.2
"""Of the time that the last run took: how long one waits for requests that are expected."""

MOST_PATIENCE_S = 0.05


def runs_at_once(cores: int) -> int:
    """Return how many runs are to share so many cores, where requests are gathered."""
    return max(AT_ONCE, cores // CORES_OF_A_RUN)


class Sized(Protocol):
    """A request, as far as it matters to which others it is added."""

    @property
    def rows(self) -> int:
        """The size of its batch dimension."""

    @property
    def key(self) -> object:
        """What all requests of one run have in common."""

    @property
    def length(self) -> int:
        """That of what can be filled up, for requests of unequal lengths to share a run."""


T = TypeVar("T", bound=Sized)
A = TypeVar("A")


class Batcher(Generic[T, A]):
    """Gathers requests and runs them, in threads of its own.

    So many rows are expected as were there lately, waiting or running; each run takes its part of
    them. A lone caller therefore never waits.

    Args:
        run: returns the answers to some requests, all of one key, beside others; must not raise.
        run_alone: the same where nobody else runs or waits when it begins.
        send: sends these answers; must not raise. Who has one may ask again before all are sent.
        max_batch_size: the most rows of a run that has more than one request.
        at_once: the most runs at a time.

    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], A],
        run_alone: Callable[[Sequence[T]], A],
        send: Callable[[Sequence[T], A], None],
        max_batch_size: int,
        at_once: int = AT_ONCE,
    ) -> None:
        self._run = run
        self._run_alone = run_alone
        self._send = send
        self._max_batch_size = max_batch_size
        self._at_once = at_once
        self._changed = threading.Condition()
        self._waiting: list[T] = []
        self._came = 0.0  # when the first of those that wait came, or could have been run
        self._runs = 0
        self._running = 0  # rows
        self._expected = 1  # rows
        self._patience_s = 0.0
        self._lone = 0  # runs one after the other that began while nobody else was there
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(at_once)]
        for thread in self._threads:
            thread.start()

    def alone(self, requests: Sequence[T]) -> bool:
        """Whether nobody else is there or expected, and these share a run: the caller's own."""
        with self._changed:
            rows = _rows(requests)
            alone = not self._waiting and not self._runs and rows >= self._expected
            alone = alone and not self._divided(requests, self._max_batch_size)[1]
            if alone:
                self._expected, self._lone = rows, 0
            return alone

    def ran(self, took_s: float) -> None:
        """Hear of a run that the caller did by itself, from which nothing follows here."""

    def put(self, requests: Sequence[T]) -> None:
        """Take requests; return when they run, or a run could begin: Triton hands over more."""
        with self._changed:
            if not self._waiting:
                self._came = time.monotonic()
            self._waiting += requests
            self._expected = max(self._expected, self._running + _rows(self._waiting))
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._runs < self._at_once or (requests and not self._waiting)
            )

    def close(self) -> None:
        """Return when everything is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while batch := self._next():
            began = time.monotonic()
            answers = (self._run_alone if self._lone > 1 else self._run)(batch)
            with self._changed:
                self._running -= _rows(batch)
                self._patience_s = min(PATIENCE * (time.monotonic() - began), MOST_PATIENCE_S)
            self._send(batch, answers)
            with self._changed:
                self._runs -= 1  # nobody is alone before that: answers take shared memory
                self._changed.notify_all()

    def _next(self) -> list[T]:
        """Wait for a batch; empty where there will be none any more."""
        with self._changed:
            free = time.monotonic()
            while not self._waiting or (left := self._left(free)) > 0:
                if self._closed and not self._waiting:
                    return []
                self._changed.wait(left if self._waiting else None)
            present = self._running + _rows(self._waiting)
            batch = self._cut(self._part())
            self._runs += 1
            self._running += _rows(batch)
            self._lone = self._lone + 1 if self._runs == 1 and not self._waiting else 0
            self._came = time.monotonic()
            # Who has gone away is expected for some runs more, each time one row less.
            self._expected = max(present, self._expected - 1)
            return batch

    def _left(self, free: float) -> float:
        """Return for how many seconds a run is to wait for more requests."""
        if self._closed or _rows(self._waiting) >= self._part():
            return 0.0
        return max(free, self._came) + self._patience_s - time.monotonic()

    def _part(self) -> int:
        """Return the rows of one run, where all that are expected are shared out."""
        return min(self._max_batch_size, -(-self._expected // self._at_once))

    def _cut(self, rows: int) -> list[T]:
        """Take the first that waits, and others like it."""
        batch, self._waiting = self._divided(self._waiting, rows)
        return batch

    def _divided(self, requests: Sequence[T], rows: int) -> tuple[list[T], list[T]]:
        """Return the first with those that join its run of at most so many rows, and the others."""
        batch: list[T] = []
        left: list[T] = []
        for request in requests:
            if not batch or self._joins(request, batch, rows):
                batch.append(request)
            else:
                left.append(request)
        return batch, left

    @staticmethod
    def _joins(request: Sized, batch: Sequence[Sized], rows: int) -> bool:
        """Whether a request may be added to a run of at most so many rows."""
        return (
            request.key == batch[0].key
            and _rows(batch) + request.rows <= rows
            and fits(request.rows, request.length, [(one.rows, one.length) for one in batch])
        )


def _rows(requests: Sequence[Sized]) -> int:
    return sum(request.rows for request in requests)
