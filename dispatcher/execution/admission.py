"""Whose turn it is: what runs at a time, what waits, what is turned away, fairly between models.

There are three kinds of turns. A call is one run of a client: a payload, or a batch of them. A job
is a request that makes several calls, such as a list, and needs a turn for each of them too: for
one at a time, and for more while nobody waits. It is counted with the first model that it asks.
Management, such as loading a model, has a few turns of its own. All limits are those of one worker.

Fairly means: of each kind a model may have a number of turns, but never more than twice as many as
are still free. So however many requests one model has, there is a turn for the next model; two
busy ones get 10 of 24 each. (The rule is known from switches, as dynamic thresholds: Choudhury and
Hahne, IEEE/ACM Transactions on Networking 6(2), 1998.) A turn that becomes free goes to the model
with the fewest; of several to the one that was served longest ago. When as many wait as may, the
last one of the model with the most makes room for a model with fewer.

Threads beyond these are left for `/ping` and its kin: however busy the models are, whether they are
ready is answered at once.
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

from clients.errors import DeadlineExceeded, ModelUnavailable
from dispatcher.errors import CallerGone, TooManyRequests
from dispatcher.settings import MANAGING, with_others

log = logging.getLogger(__name__)

SLOTS_PER_FREE = 2  # turns of a model for each that is free: with one busy model a third stays free

LARGE_BODY = 2**20  # bytes; as many smaller bodies as there are threads are no danger to memory
MAX_LARGE_BODIES = 8  # of the largest bodies; read as JSON each may take ten times its size

TIME_USED_UP = "the time for this request is used up"
TIME_USED_UP_HINT = "send fewer or smaller items in one request"

# Calls of one model that may hang before the others are refused: each keeps a thread for good.
MAX_HANGING = 4


@dataclass(frozen=True)
class Caller:
    """Who asked: at the other end of `connection`, where it is known."""

    connection: socket.socket | None = None

    def disconnected(self) -> bool:
        """Whether the caller has closed the connection; NGINX does so for a caller who left."""
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
    """A turn, from the wait for it to its end.

    Args:
        turns: what it is a turn of.
        model: whose it is.
        deadline: when the caller wants an answer, on the clock of `time.monotonic()`.
        caller: who asked.
        on_timeout: answers the caller in the place of a thread that does not come back in time.
        in_job: it is one of a job, which has waited for its own turn.

    """

    slots: Slots
    model: str
    deadline: float
    caller: Caller
    on_timeout: Callable[[], None] | None = None
    in_job: bool = False
    since: float = 0.0
    thread: int = 0
    hanging: bool = False
    refused: bool = False
    wake: threading.Lock | None = None
    answered: threading.Event | None = None

    def late(self) -> bool:
        """Whether the caller wanted an answer before now."""
        return time.monotonic() >= self.deadline

    def release(self) -> None:
        """Give the turn back.

        Raises:
            DeadlineExceeded: the caller was answered meanwhile that it took too long.

        """
        self.slots.release(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Give the turn back; what went wrong in it goes before what goes wrong with that."""
        try:
            self.release()
        except Exception as late:
            if error is None:
                raise
            if not isinstance(error, DeadlineExceeded):
                foreseen = isinstance(late, DeadlineExceeded)
                log.warning(
                    "a call of %r failed, and so did its end: %s",
                    self.model,
                    late,
                    exc_info=not foreseen,
                )


@dataclass
class WaitingQueue:
    """Those who wait for a turn of any kind: at most `most`."""

    most: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    kinds: list[Slots] = field(default_factory=list)

    def join(self, slot: Slot) -> None:
        """Let one more wait; where too many do, another has to go. The lock is held.

        Raises:
            TooManyRequests: no other has to.

        """
        if self.count >= self.most:
            self.wake_disconnected()
        if self.count >= self.most:
            queues = [
                [one for one in queue if not one.in_job]
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
        """Wake those whose callers have left: they see it themselves."""
        for slots in self.kinds:
            for queue in list(slots.queues.values()):
                for slot in list(queue):
                    if slot.caller.disconnected():
                        slots.wake(slot)


class Slots:
    """Turns of one kind.

    Args:
        total: how many there are.
        per_model: how many one model may have.
        line: where those wait who have none.

    """

    def __init__(self, total: int, per_model: int, waiting_queue: WaitingQueue) -> None:
        self.per_model = per_model
        self.total = self.free = total
        self.queues: dict[str, deque[Slot]] = {}  # the model that was served longest ago first
        self.taken: Counter[str] = Counter()
        self.hanging: Counter[str] = Counter()
        self.ignored_hanging: Counter[str] = Counter()
        self.running: set[Slot] = set()
        self._waiting_queue = waiting_queue
        self._lock = waiting_queue.lock
        waiting_queue.kinds.append(self)

    def enter(
        self,
        model: str,
        deadline: float,
        caller: Caller = Caller(),
        on_timeout: Callable[[], None] | None = None,
        *,
        in_job: bool = False,
    ) -> Slot:
        """Wait for a turn; before the others of its model where a job has waited already.

        Raises:
            TooManyRequests: as many wait as may.
            DeadlineExceeded: the turn did not come in time; nothing is begun that would be late.
            CallerGone: nobody wants the answer any more.
            ModelUnavailable: too many calls of the model hang.

        """
        slot = Slot(self, model, deadline, caller, on_timeout, in_job)
        with self._lock:
            self._refuse_hanging(model)
            if model not in self.queues and self._has_capacity_for(model):
                if slot.late():
                    raise DeadlineExceeded(
                        "the time for this request was used up before its turn",
                        hint="send fewer requests at a time, or fewer or smaller items in one",
                    )
                self._grant(slot)
                return slot
            if not in_job:
                self._waiting_queue.join(slot)
            slot.wake = threading.Lock()
            slot.wake.acquire()
            queue = self.queues.setdefault(model, deque())
            (queue.appendleft if in_job else queue.append)(slot)
        slot.wake.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))
        with self._lock:
            granted = slot in self.running
            if not granted:
                self._leave_queue(slot)
        if caller.disconnected():
            if granted:
                slot.release()
            raise CallerGone("the caller has left before it was this request's turn")
        if slot.refused:
            raise queue_full()
        if granted and slot.late():
            slot.release()
            granted = False
        if not granted:
            self._refuse_hanging(model)
            raise DeadlineExceeded(
                "the time for this request was used up while it waited for others",
                hint="send fewer requests at a time",
            )
        slot.thread = threading.get_ident()
        return slot

    def try_enter(self, model: str, deadline: float) -> Slot | None:
        """Return a turn if there is one that nobody waits for, and time for it."""
        slot = Slot(self, model, deadline, Caller(), in_job=True)
        if slot.late():
            return None
        with self._lock:
            if model in self.queues or model in self.hanging or not self._has_capacity_for(model):
                return None
            self._grant(slot)
            return slot

    def release(self, slot: Slot) -> None:
        with self._lock:
            self.running.discard(slot)
            self.free += 1
            decrement(self.taken, slot.model)
            if slot.hanging:
                decrement(self.hanging, slot.model)
                self.ignored_hanging &= self.hanging  # the least of both
            while self.free and (model := self._next()) is not None:
                # Moved behind the others, if there are more of it.
                queue = self.queues.pop(model)
                self.queues[model] = queue
                self._grant(queue[0])
                self.wake(queue[0])
        if slot.answered is not None:
            slot.answered.wait()  # what is written after that goes nowhere
            raise DeadlineExceeded(TIME_USED_UP, hint=TIME_USED_UP_HINT)

    def answer_overdue(self, before: float) -> None:
        """Answer the callers who wanted an answer before that time.

        Whoever comes first, this or `release`, decides who answers.
        """
        with self._lock:
            late = [
                t for t in self.running if t.on_timeout and not t.answered and t.deadline < before
            ]
            for slot in late:
                slot.answered = threading.Event()
        for slot in late:
            if slot.on_timeout and slot.answered:
                try:
                    slot.on_timeout()
                except Exception:
                    log.exception("a caller of %r cannot be answered", slot.model)
                finally:
                    slot.answered.set()

    def find_hanging(
        self, before: float, entered: Callable[[int], float] = lambda _: -math.inf
    ) -> list[Slot]:
        """Count as lost, and return, those that began before that time and were not counted yet.

        Where they are too many of a model, those who wait for it wait no longer.

        Args:
            before: the time.
            entered: returns since when a thread is in what it had to wait for, which is no fault of
                its model.

        """
        with self._lock:
            found = [
                slot
                for slot in self.running
                if not slot.hanging and max(slot.since, entered(slot.thread)) < before
            ]
            for slot in found:
                slot.hanging = True
                self.hanging[slot.model] += 1
            for model in {slot.model for slot in found}:
                if self._is_hanging(model):
                    for waiting in list(self.queues.get(model, ())):
                        self.wake(waiting)
        return found

    def wake(self, slot: Slot) -> None:
        """Let one that waits go on, whether or not it has its turn now. The lock is held."""
        self._leave_queue(slot)
        if slot.wake is not None:
            slot.wake.release()

    def _leave_queue(self, slot: Slot) -> None:
        queue = self.queues.get(slot.model)
        if queue is None or slot not in queue:
            return
        queue.remove(slot)
        if not queue:
            del self.queues[slot.model]
        self._waiting_queue.count -= not slot.in_job

    def reset_hanging(self) -> None:
        """Let models be asked again though calls of them hang: their clients are others now."""
        with self._lock:
            self.ignored_hanging = self.hanging.copy()

    def _refuse_hanging(self, model: str) -> None:
        if self.hanging and self._is_hanging(model):
            raise ModelUnavailable(
                f"{self.hanging[model]} calls of the client of {model[:100]!r} hang",
                hint="the log of the container says where",
            )

    def _is_hanging(self, model: str) -> bool:
        return self.hanging[model] - self.ignored_hanging[model] >= MAX_HANGING

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


class LargeBodies:
    """The large bodies that are held in memory at a time: at most `most` bytes of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._lock = threading.Lock()

    def take(self, length: int) -> Callable[[], None]:
        """Count a body before it is read; return what is to be called when it is done with.

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
    """Lets requests in.

    Args:
        calls: of one model that run at a time.
        jobs: of one model that run at a time; each has a call under way, unless others wait.
        waiting: how many requests may wait for their turn.
        max_body: bytes of the largest body.

    """

    def __init__(self, calls: int, jobs: int, waiting: int, max_body: int) -> None:
        waiting_queue = WaitingQueue(waiting)
        self.calls = Slots(with_others(calls), calls, waiting_queue)
        self.jobs = Slots(with_others(jobs), jobs, waiting_queue)
        self.management = Slots(with_others(MANAGING), MANAGING, waiting_queue)
        self.bodies = LargeBodies(MAX_LARGE_BODIES * max_body)


def nothing() -> None:
    """Give nothing back."""


def decrement(counter: Counter[str], name: str) -> None:
    """Take one off, and leave no zero behind: callers choose the names."""
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]


def queue_full() -> TooManyRequests:
    return TooManyRequests(
        "too many requests are waiting already", hint="try again after Retry-After seconds"
    )
