"""Admission control: limits what runs in a web worker, and what is kept in memory.

There are three kinds of slots. A call is one run of a client, for a payload or a batch. A job is a
request that makes several calls, such as a list; it needs a slot for each of them too: one at a
time, and more while no other request waits. It counts for the first model that it names.
Management, such as loading a model, has a few slots of its own. All limits are those of one worker.

There are more threads than slots, so that `/ping` and similar routes answer even if all models are
busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dispatcher.errors import TooManyRequests
from dispatcher.execution.slots import Slots, WaitingQueue
from dispatcher.settings import MANAGING, with_others

LARGE_BODY = 2**20  # bytes; one smaller body for each thread does not endanger memory
MAX_LARGE_BODIES = 8  # of the largest size; parsed as JSON each may take ten times its size


class LargeBodies:
    """The large bodies in memory: at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._lock = threading.Lock()

    def take(self, length: int) -> Callable[[], None]:
        """Count a body before it is read; return a function that releases it.

        Raises:
            TooManyRequests: there is no room for it now.

        """
        if length <= LARGE_BODY:
            return nothing
        with self._lock:
            if self.held + length > self.most:
                raise TooManyRequests(
                    f"the large requests under way hold {self.held // 2**20} MiB already",
                    hint="try again after Retry-After seconds, with fewer at a time",
                )
            self.held += length

        def done() -> None:
            with self._lock:
                self.held -= length

        return done


class Admission:
    """Admits requests.

    Args:
        calls: how many calls of one model may run at a time.
        jobs: how many jobs of one model may run at a time.
        waiting: how many requests may wait for a slot.
        max_body: bytes of the largest body.

    """

    def __init__(self, calls: int, jobs: int, waiting: int, max_body: int) -> None:
        waiting_queue = WaitingQueue(waiting)
        self.calls = Slots(with_others(calls), calls, waiting_queue)
        self.jobs = Slots(with_others(jobs), jobs, waiting_queue)
        self.management = Slots(with_others(MANAGING), MANAGING, waiting_queue)
        self.bodies = LargeBodies(MAX_LARGE_BODIES * max_body)


def nothing() -> None:
    """Do nothing."""
