"""Requests of one model instance that are run one by one, some at a time.

Triton gives an instance the next request when it has returned from the last. Here it returns while
that one runs, so that one process, with one copy of the weights, has as many runs as it has cores.
"""

from __future__ import annotations

import math
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHORT_S = 1e-3
"""A run that takes no longer is not worth another thread; `wrk` on the model that does nothing."""

LONG_S = 4.0
"""Fewer runs at a time, with more cores each, where all would take longer than this: of eight that
begin and end together nobody is answered meanwhile, and the model seems to hang."""

T = TypeVar("T")
A = TypeVar("A")


class SideBySide(Generic[T, A]):
    """Runs what it is given as it comes, in threads of its own.

    Args:
        run: returns the answers to the requests of one run; must not raise.
        send: sends these answers; must not raise.
        at_once: the most runs at a time.
        clock: in seconds.

    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], A],
        send: Callable[[Sequence[T], A], None],
        at_once: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._send = send
        self._at_once = at_once
        self._clock = clock
        self._changed = threading.Condition()
        self._runs = 0
        self._took_s = math.inf  # the last run
        self._most = 1
        self._handed: SimpleQueue[Sequence[T] | None] = SimpleQueue()
        # All of them now: where there is no room for a thread the model is not loaded.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(at_once)]
        for thread in self._threads:
            thread.start()

    def alone(self, _: Sequence[T]) -> bool:
        """Whether the caller had better run these itself, and tell with `ran`."""
        return self._took_s < SHORT_S and not self._runs

    def ran(self, took_s: float) -> None:
        """Take note of a run that the caller did by itself."""
        self._learn(took_s, 1)

    def put(self, requests: Sequence[T]) -> None:
        """Run these as soon as there is a thread for them; return then, or where there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._runs < self._most)
            if not requests:
                return
            self._runs += 1
        self._handed.put(requests)

    def close(self) -> None:
        """Return when everything is answered."""
        for _ in self._threads:
            self._handed.put(None)
        for thread in self._threads:
            thread.join()

    def _learn(self, took_s: float, runs: int) -> None:
        self._took_s = took_s
        # Where twice as many share the same cores each takes twice as long, or less. What takes
        # less is found out step by step.
        most = LONG_S * runs / max(took_s, SHORT_S)
        self._most = max(1, min(self._at_once, int(most)))

    def _work(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run what was handed over and send the answers; False where nothing will be any more.

        Its tensors are forgotten on return, not when something else comes.
        """
        requests = self._handed.get()
        if requests is None:
            return False
        began, runs = self._clock(), self._runs
        answers = self._run(requests)
        self._learn(self._clock() - began, max(runs, self._runs))
        self._send(requests, answers)
        with self._changed:
            self._runs -= 1
            self._changed.notify()
        return True
