"""Admission control: limits what runs in a web worker, and what is kept in memory.

There are three kinds of slots. A call is one run of a client, for a payload or a batch. A series is
a request that makes several calls, such as a list; it needs a slot for each of them too: one at a
time, and more while no other request waits. It counts for the first model that it names.
Management, such as loading a model, has a few slots of its own. All limits are those of one worker.

There are more threads than slots, so that `/ping` and similar routes answer even if all models are
busy.
"""

from __future__ import annotations

from dispatcher.codecs.content_types import LargeBodies
from dispatcher.execution.slots import Slots, WaitingQueue
from dispatcher.settings import MANAGING, with_others


class Admission:
    """Admits so many calls and series of one model, waiting requests, and bytes of large bodies."""

    def __init__(self, calls: int, series: int, waiting: int, bodies: int) -> None:
        self.waiting = waiting_queue = WaitingQueue(waiting)
        self.calls = Slots(with_others(calls), calls, waiting_queue)
        self.series = Slots(with_others(series), series, waiting_queue)
        self.management = Slots(with_others(MANAGING), MANAGING, waiting_queue)
        self.bodies = LargeBodies(bodies)

    def is_free(self) -> bool:
        """Whether there is a slot for a call, and no request waits for one."""
        return self.calls.free > 0 and not self.waiting.count
