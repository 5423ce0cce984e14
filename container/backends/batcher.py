"""Batches inside of one model instance, some of which run at a time.

Triton gives an instance what is queued as soon as it returns. Callers that were answered together
come back within some milliseconds, one by one: the first would be run alone, and all others wait
for it. Here a run waits a moment for those that are expected, and while its requests are answered
and asked anew another one has the cores.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from container.backends.padding import are_near, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE = 2
"""The least runs at a time: one computes while the requests of the other are on their way."""

CORES_OF_A_RUN = 4
"""More cores than these are better given to another run: of texts on 16, four runs at a time had
1.1 to 1.2 times as many answers as two with 16 and 64 callers, and 0.9 with 4; eight 1.04, 1.3 and
0.85; `python -m bench.compare --models bert_base`."""

FEW = 160
"""Tokens, in all requests that are there or expected, of which one run with all cores is quicker
than two on half of them each: it reads the weights once instead of twice, which takes as long as
the arithmetic of 10 to 20 tokens. (docs/performance.md; of 200 to 280 tokens some shapes gain by it
and some lose, of 320 and more most lose; with more cores than three nobody has measured it.)"""

ALIKE = 8
"""Whoever waits for a common run does so in vain where others are too long for one: so many runs
one after the other have to have been of requests that could have shared one."""

LONG_S = 0.25
"""Nobody waits longer for the turn of a common run."""

PATIENCE = 0.2
"""Of the time that the last run took: how long one waits for requests that are expected."""

COMMON_PATIENCE = 0.5
"""The same for a common run: who comes too late waits for all of it."""

MOST_PATIENCE_S = 0.05

WAITED = 0.05
"""Of the time of a run that was alone: who comes no later after it has waited in Triton's queue
meanwhile. (Two callers of a ResNet-50 had 44 answers a second where each had all cores in turn, and
48 side by side.)"""

MOST_WAITED_S = 0.001
"""Who asks anew after a lone run needs 2 ms, however long it was; Triton hands over within one."""


def most_in_one_run(cores: int) -> int:
    """Return up to how many tokens one run had better have so many cores; 0 for no such run."""
    return FEW if 1 < cores < CORES_OF_A_RUN else 0


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
        run_alone: the same where nobody else runs, and nobody is going to.
        send: sends these answers; must not raise. Who has one may ask again before all are sent.
        max_batch_size: the most rows of a run that has more than one request.
        at_once: the most runs at a time.
        few: up to so many tokens, all as long as the longest, one run with all cores is for
            everybody.
        most: rows that are gathered for one run; as many as it may have, where that is not said.
        crowded: whether others have all cores, so that one run of many would have a part of one.

    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        run: Callable[[Sequence[T]], A],
        run_alone: Callable[[Sequence[T]], A],
        send: Callable[[Sequence[T], A], None],
        max_batch_size: int,
        at_once: int = AT_ONCE,
        few: int = 0,
        most: int | None = None,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run = run
        self._run_alone = run_alone
        self._send = send
        self._max_batch_size = max_batch_size
        self._at_once = at_once
        self._most = min(most or max_batch_size, max_batch_size)
        # From how many on rows are gathered: below that small runs are better begun at once.
        # (Triton hands over no more than `most` at a time, and none while some wait.)
        self._least = min(2 * at_once, at_once + self._most) if most else 0
        self._few = few
        self._crowded = crowded
        self._changed = threading.Condition()
        self._waiting: list[T] = []
        self._came = 0.0  # when the first of those that wait came, or could have been run
        self._begun: dict[int, float] = {}  # when the runs began that are not answered, by thread
        self._running = 0  # rows
        self._expected = 1  # rows
        self._took_s = 0.0  # the last run
        self._alike = 0  # runs one after the other whose requests had better have shared one
        self._last: object = ()  # the key of the last run
        self._lone = 0  # runs one after the other that began while nobody else was there
        self._alone = (0, -math.inf, 0.0)  # the caller's last run: rows, its end, what it took
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(at_once)]
        for thread in self._threads:
            thread.start()

    def alone(self, requests: Sequence[T]) -> bool:
        """Whether nobody else is there or expected, and these share a run: the caller's own."""
        with self._changed:
            rows = _rows(requests)
            before, ended, took_s = self._alone
            if time.monotonic() - ended < min(WAITED * took_s, MOST_WAITED_S):
                self._expected = max(self._expected, before + rows)
            alone = not self._waiting and not self._begun and rows >= self._expected
            alone = alone and not self._divided(requests, self._max_batch_size)[1]
            if alone:
                self._expected, self._lone = rows, 0
                self._alone = (rows, -math.inf, 0.0)
            return alone

    def ran(self, took_s: float) -> None:
        """Hear of a run that the caller did by itself."""
        with self._changed:
            self._alone = (self._alone[0], time.monotonic(), took_s)

    def put(self, requests: Sequence[T]) -> None:
        """Take requests; return when they run, or a run could begin: Triton hands over more."""
        with self._changed:
            if not self._waiting:
                self._came = time.monotonic()
            self._waiting += requests
            self._expected = max(self._expected, self._running + _rows(self._waiting))
            self._changed.notify_all()
            while (turn := self._turn(shared=self._share_one())) and (
                self._waiting or not requests
            ):
                self._changed.wait(min(turn, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Return when everything is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run a batch and send its answers; False where there will be none any more.

        Its tensors are forgotten on return, not when the next batch comes.
        """
        found = self._next()
        if not found:
            return False
        run, batch = found
        began = time.monotonic()
        answers = run(batch)
        with self._changed:
            self._running -= _rows(batch)
            self._took_s = time.monotonic() - began
        self._send(batch, answers)
        with self._changed:
            # Nobody is alone before that: answers take shared memory.
            del self._begun[threading.get_ident()]
            if self._share_one():
                self._came = time.monotonic()
            self._changed.notify_all()
        return True

    def _next(self) -> tuple[Callable[[Sequence[T]], A], list[T]] | None:
        """Wait for a batch, and choose how it is run; None where there will be none any more."""
        with self._changed:
            free = time.monotonic()
            while not self._waiting or (left := self._left(free)) > 0:
                if self._closed and not self._waiting:
                    return None
                self._changed.wait(left if self._waiting else None)
            present = self._running + _rows(self._waiting)
            if self._few:
                self._compare()
            shared = self._share_one()
            is_for_all = shared and not self._begun
            batch = self._all() if shared else self._cut(self._part(shared=False))
            self._came = self._begun[threading.get_ident()] = time.monotonic()
            self._running += _rows(batch)
            self._lone = self._lone + 1 if len(self._begun) == 1 and not self._waiting else 0
            # Who has gone away is expected for some runs more, each time one row less.
            self._expected = max(present, self._expected - 1)
            return self._run_alone if is_for_all or self._lone > 1 else self._run, batch

    def _compare(self) -> None:
        """Take note of whether those that wait had better share a run, as those before."""
        self._alike = self._alike + 1 if self._can_share() and not self._crowded() else 0
        self._last = self._waiting[0].key

    def _can_share(self) -> bool:
        """Whether all that wait, and as many as are expected, could share one like the last."""
        longest = max((request.length for request in self._waiting), default=0)
        rows = max(self._expected, _rows(self._waiting))
        return (
            rows <= self._max_batch_size
            and 0 < rows * longest <= self._few
            and all(request.key == self._last for request in self._waiting)
            and are_near(
                [request.length for request in self._waiting],
                [request.rows for request in self._waiting],
            )
        )

    def _share_one(self) -> bool:
        """Whether all that wait, and as many as are expected, had better share one run."""
        return self._alike >= ALIKE and self._can_share()

    def _turn(self, *, shared: bool) -> float:
        """Return for how many seconds those that wait are not to be run."""
        if not self._begun:
            return 0.0
        if len(self._begun) >= self._at_once:
            return math.inf
        if not shared:
            return 0.0
        return max(0.0, min(self._begun.values()) + LONG_S - time.monotonic())

    def _left(self, free: float) -> float:
        """Return for how many seconds a run is to wait for its turn, or for more requests."""
        shared = self._share_one()
        turn = self._turn(shared=shared)
        waiting = _rows(self._waiting)
        if turn or self._closed or waiting >= self._part(shared=shared):
            return turn
        # Who waits for those that run shares their next run, which pays where reading weights is
        # most of it; not where runs are to be small: three and five callers of a ResNet-50 had
        # 1.06 and 1.08 times as many answers where nobody waited so.
        if self._least and self._running + waiting >= self._expected:
            return 0.0
        patience = COMMON_PATIENCE if shared else PATIENCE
        until = max(free, self._came) + min(patience * self._took_s, MOST_PATIENCE_S)
        return until - time.monotonic()

    def _part(self, *, shared: bool) -> int:
        """Return the rows of one run: all that are expected, or its part of them."""
        if shared:
            return min(self._max_batch_size, self._expected)
        if self._expected < self._least:
            return 1
        return min(self._most, -(-self._expected // self._at_once))

    def _all(self) -> list[T]:
        """Take all that wait, for a common run: there `are_near` says how much is filled up."""
        batch, self._waiting = self._waiting, []
        return batch

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
