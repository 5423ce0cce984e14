"""Slots for concurrent work, shared fairly between models.

A model may have a number of slots of each kind, but never more than twice as many as are free. So
whatever the load of one model, there is a slot for another; two busy models get 10 of 24 each. (The
rule is known from switches as dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
Networking 6(2), 1998.) A slot that becomes free goes to the model with the fewest slots, among
equals to the one that was served longest ago. When the queue is full, the last request of the model
with the most waiting requests is refused in favour of one for a model with fewer.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from clients.errors import DeadlineExceeded, TooManyRequests
from dispatcher.errors import CallerGone, time_used_up

log = logging.getLogger(__name__)

SLOTS_PER_FREE = 2  # slots of a model for each free one: with one busy model a third stays free

# Part of the name under which new sequences of a model wait for slots: they may wait long in
# Triton, and must not hold up those that go on.
STARTS = " (new sequences)"


@dataclass(frozen=True)
class Caller:
    """The caller of a request, at the other end of `connection` if that is known."""

    connection: socket.socket | None = None

    def disconnected(self) -> bool:
        """Check whether the connection is closed, as NGINX does when the caller disconnects."""
        if self.connection is None:
            return False
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


@dataclass(eq=False, slots=True)
class Slot:
    """A slot, from the wait for it until it is released."""

    slots: Slots  # the slots that it is one of
    model: str  # the model that it is for
    deadline: float  # when the caller wants a response, on the clock of `time.monotonic()`
    caller: Caller  # of the request
    # Answers the caller when the thread in the slot does not return in time.
    on_timeout: Callable[[], None] | None = None
    # Whether it is a call of a series, which has waited for a slot of its own.
    in_series: bool = False
    # Whether it is a stream, whose `on_timeout` is due as soon as the caller is gone.
    until_gone: bool = False
    since: float = 0.0
    thread: int = 0
    hanging: bool = False
    refused: bool = False
    woken: threading.Lock | None = None
    answered: threading.Event | None = None

    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    def release(self) -> None:
        """Release the slot.

        Raises DeadlineExceeded: the caller was answered meanwhile.
        """
        self.slots.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Release the slot; an error of the call itself goes before one of the release."""
        try:
            self.release()
        except Exception as late:
            if error is None:
                raise
            if not isinstance(error, DeadlineExceeded):
                foreseen = isinstance(late, DeadlineExceeded)
                log.warning(
                    "a call of %r failed, and releasing its slot raised: %s",
                    self.model,
                    late,
                    exc_info=not foreseen,
                )


@dataclass
class WaitingQueue:
    """The requests that wait for a slot of any kind: at most `most`."""

    most: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    kinds: list[Slots] = field(default_factory=list)

    def join(self, slot: Slot) -> None:
        """Add a waiting request, and make room for it; the lock is held.

        Raises TooManyRequests: there is no room.
        """
        if self.count >= self.most:
            self.wake_disconnected()
        if self.count >= self.most:
            queues = [
                [one for one in queue if not one.in_series]
                for slots in self.kinds
                for queue in slots.queues.values()
            ]
            longest = max(queues, key=len, default=[])
            own = slot.slots.queues.get(slot.model, ())
            if len(longest) <= len(own) + 1:
                raise queue_full()
            last = longest[-1]
            last.refused = True
            last.slots.wake(last)
        self.count += 1

    def wake_disconnected(self) -> None:
        """Wake the requests whose callers are gone: they end by themselves."""
        for slots in self.kinds:
            for queue in list(slots.queues.values()):
                for slot in list(queue):
                    if slot.caller.disconnected():
                        slots.wake(slot)


class Slots:
    """The slots of one kind."""

    def __init__(self, total: int, per_model: int, waiting_queue: WaitingQueue) -> None:
        self.per_model = per_model
        self.total = self.free = total
        self.queues: dict[str, deque[Slot]] = {}  # the model that was served longest ago first
        self.taken: Counter[str] = Counter()
        self.running: set[Slot] = set()
        self._waiting_queue = waiting_queue
        self._lock = waiting_queue.lock
        waiting_queue.kinds.append(self)

    def enter(
        self,
        model: str,
        deadline: float,
        caller: Caller = Caller(),
        *,
        in_series: bool = False,
    ) -> Slot:
        """Wait for a slot; a call of a series goes before the other requests of its model.

        Raises TooManyRequests: the queue is full.
        """
        slot = Slot(self, model, deadline, caller, in_series=in_series)
        with self._lock:
            if model not in self.queues and self._has_capacity_for(model):
                if slot.late():
                    raise DeadlineExceeded(
                        "the time for this request was used up before it got a slot",
                        hint="send fewer requests at a time, or fewer or smaller items in one",
                    )
                self._grant(slot)
                return slot
            if not in_series:
                self._waiting_queue.join(slot)
            slot.woken = threading.Lock()
            slot.woken.acquire()
            queue = self.queues.setdefault(model, deque())
            (queue.appendleft if in_series else queue.append)(slot)
        slot.woken.acquire(
            timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
        )
        with self._lock:
            granted = slot in self.running
            if not granted:
                self._leave_queue(slot)
        if caller.disconnected():
            if granted:
                slot.release()
            raise CallerGone("the caller closed the connection while this request was waiting")
        if slot.refused:
            raise queue_full()
        if granted and slot.late():
            slot.release()
            granted = False
        if not granted:
            raise DeadlineExceeded(
                "the time for this request was used up while it waited for a slot",
                hint="send fewer requests at a time",
            )
        slot.thread = threading.get_ident()
        return slot

    def saturation(self) -> float:
        """Return the share of its slots that the busiest model uses, 0 to 1.

        1 means that a further request of this model would wait, or does. The number of slots that a
        model may have is what the rule above gives it while the other models keep theirs.
        """
        with self._lock:
            return max(
                (self._share(model, taken) for model, taken in self.taken.items()), default=0
            )

    def _share(self, model: str, taken: int) -> float:
        if model in self.queues or not self._has_capacity_for(model):
            return 1.0
        most = SLOTS_PER_FREE * (self.free + taken + 1) // (SLOTS_PER_FREE + 1)
        return taken / min(self.per_model, most)

    def try_enter(self, model: str, deadline: float) -> Slot | None:
        """Return a slot for a call of a series, or `None` where none is free."""
        slot = Slot(self, model, deadline, Caller(), in_series=True)
        if slot.late():
            return None
        with self._lock:
            if model in self.queues or not self._has_capacity_for(model):
                return None
            self._grant(slot)
            return slot

    def release(self, slot: Slot) -> None:
        with self._lock:
            self.running.discard(slot)
            self.free += 1
            self.taken[slot.model] -= 1
            if not self.taken[slot.model]:  # no zero is kept, as callers choose the names
                del self.taken[slot.model]
            while self.free and (model := self._next()) is not None:
                # Moved behind the other models, if it has more waiting requests.
                queue = self.queues.pop(model)
                self.queues[model] = queue
                self._grant(queue[0])
                self.wake(queue[0])
        if slot.answered is not None:
            slot.answered.wait()  # what this thread writes after that is discarded
            raise time_used_up()

    def answer_overdue(self, before: float, now: float = -math.inf) -> None:
        """Answer the callers whose deadline was before that time; end streams that are late now.

        The first of this and `release` decides which thread answers.
        """
        with self._lock:
            late = [
                slot
                for slot in self.running
                if slot.on_timeout
                and not slot.answered
                and (
                    slot.deadline < before
                    or (slot.until_gone and (slot.deadline < now or slot.caller.disconnected()))
                )
            ]
            for slot in late:
                slot.answered = threading.Event()
        for slot in late:
            if slot.on_timeout and slot.answered:
                try:
                    slot.on_timeout()
                except Exception:
                    log.exception("cannot send the answer 504 to a caller of %r", slot.model)
                finally:
                    slot.answered.set()

    def find_hanging(
        self, before: float, entered: Callable[[int], float] = lambda _: -math.inf
    ) -> list[Slot]:
        """Count the calls that began before that time as hanging; return the new ones.

        `entered` returns when a thread ended a wait that its model did not cause.
        """
        with self._lock:
            found = [
                slot
                for slot in self.running
                if not slot.hanging and max(slot.since, entered(slot.thread)) < before
            ]
            for slot in found:
                slot.hanging = True
        return found

    def wake(self, slot: Slot) -> None:
        """Wake a waiting request, with its slot or without; the lock is held."""
        self._leave_queue(slot)
        if slot.woken is not None:
            slot.woken.release()

    def _leave_queue(self, slot: Slot) -> None:
        queue = self.queues.get(slot.model)
        if queue is None or slot not in queue:
            return
        queue.remove(slot)
        if not queue:
            del self.queues[slot.model]
        self._waiting_queue.count -= not slot.in_series

    def _has_capacity_for(self, model: str) -> bool:
        return self.taken[model] < min(self.per_model, SLOTS_PER_FREE * self.free)

    def _next(self) -> str | None:
        eligible = (model for model in self.queues if self._has_capacity_for(model))
        return min(eligible, key=self.taken.__getitem__, default=None)

    def _grant(self, slot: Slot) -> None:
        self.free -= 1
        self.taken[slot.model] += 1
        slot.since = time.monotonic()
        slot.thread = threading.get_ident()
        self.running.add(slot)


def queue_full() -> TooManyRequests:
    return TooManyRequests("the queue is full", hint="try again after Retry-After seconds")
