"""One machine: the server's slots, a queue before each model, and cores that all work shares.

The slots are the server's own (`dispatcher.execution.slots`: the same code). A free run takes from
its model's queue what fits into a batch. Where the work at hand could keep more cores busy than
there are, all of it goes slower by the same factor.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from bench.capacity.service import Service
from dispatcher.errors import TooManyRequests
from dispatcher.execution.slots import Caller, Slot, Slots, WaitingQueue
from dispatcher.settings import with_others

SAME_TIME = 1e-12


@dataclass(frozen=True)
class Limits:
    """A machine's limits, all of one web worker: the defaults of the settings."""

    threads: int = 16
    queue: int = 64
    workers: int = 1


def workers_of(cores: int) -> int:
    """Return how many web workers a machine has: MODEL_SERVER_WORKERS=auto."""
    return min(4, max(1, cores // 4))


class Turns(Slots):
    """The server's slots, where a request that waits blocks no thread."""

    def __init__(self, limits: Limits) -> None:
        waiting = WaitingQueue(limits.queue)
        super().__init__(with_others(limits.threads), limits.threads, waiting)
        self.waiting = waiting
        self.woken: list[Slot] = []

    def arrive(self, model: str) -> Slot:
        """Return a slot that has been granted, or waits; others may be refused in its favour.

        Raises:
            TooManyRequests: the queue is full.

        """
        slot = Slot(self, model, math.inf, Caller())
        if model not in self.queues and self._has_capacity_for(model):
            self._grant(slot)
            return slot
        self._waiting_queue.join(slot)
        self.queues.setdefault(model, deque()).append(slot)
        return slot

    def wake(self, slot: Slot) -> None:
        self._leave_queue(slot)
        self.woken.append(slot)

    def taken_by_wake(self) -> list[Slot]:
        """Return the slots that were woken since: granted, or refused."""
        woken, self.woken = self.woken, []
        return woken

    @property
    def load(self) -> int:
        return self.total - self.free + self.waiting.count


@dataclass(slots=True)
class Request:
    """One request, from its arrival on."""

    number: int
    model: str
    front: float
    turns: Turns | None = None
    slot: Slot | None = None


class Machine:
    """One machine; `now` never goes back. A request that is refused is not heard of again.

    Args:
        cores: that it has.
        services: of its models, by name.
        limits: of its slots.
        draw: returns a number from 0 to 1, the share of the distribution of a run's time.
        done: is called with each request that is answered, and when.

    """

    def __init__(
        self,
        cores: int,
        services: Mapping[str, Service],
        limits: Limits,
        draw: Callable[[], float],
        done: Callable[[Request, float], None],
    ) -> None:
        self.cores, self.services = cores, services
        self.workers = [Turns(limits) for _ in range(limits.workers)]
        self.busy = 0.0
        """Seconds of its cores that were used."""
        self.version = 0
        self._draw, self._done = draw, done
        self._requests: dict[Slot, Request] = {}
        self._queues: dict[str, deque[Request]] = {name: deque() for name in services}
        self._running = dict.fromkeys(services, 0)
        # Shared evenly: work ends at a point of a clock that runs slower where there is more.
        self._clock = self._shared = self._width = 0.0
        self._speed = 1.0
        self._numbers = count()
        self._work: list[tuple[float, int, float, Request | list[Request]]] = []

    @property
    def load(self) -> int:
        return sum(turns.load for turns in self.workers)

    def saturation(self) -> float:
        """Return the mean of its web workers' saturations."""
        return sum(turns.saturation() for turns in self.workers) / len(self.workers)

    def due(self) -> float:
        """Return when the next work ends."""
        if not self._work:
            return math.inf
        return self._clock + max(0.0, self._work[0][0] - self._shared) / self._speed

    def arrive(self, request: Request, now: float) -> None:
        self.advance(now)
        turns = min(self.workers, key=lambda one: one.load)
        request.turns = turns
        try:
            request.slot = turns.arrive(request.model)
        except TooManyRequests:
            return
        for slot in turns.taken_by_wake():  # refused in its favour
            del self._requests[slot]
        self._requests[request.slot] = request
        if request.slot in turns.running:
            self._begin(request.front, 1.0, request)

    def finish(self, now: float) -> None:
        """End the work that is due."""
        self.advance(now)
        while self._work and self._work[0][0] <= self._shared + SAME_TIME:
            _, _, width, work = heapq.heappop(self._work)
            self._widen(-width)
            if isinstance(work, Request):
                self._queues[work.model].append(work)
                self._run(work.model)
                continue
            model = work[0].model
            self._running[model] -= 1
            for request in work:
                self._leave(request, now)
            self._run(model)

    def advance(self, now: float) -> None:
        took = now - self._clock
        self._shared += took * self._speed
        self.busy += took * min(self._width, self.cores)
        self._clock = now

    def _run(self, model: str) -> None:
        queue, service = self._queues[model], self.services[model]
        while queue and self._running[model] < service.streams:
            batch = [queue.popleft() for _ in range(min(service.batch, len(queue)))]
            self._running[model] += 1
            seconds, width = service.run(len(batch), self._draw())
            self._begin(seconds, width, batch)

    def _leave(self, request: Request, now: float) -> None:
        self._done(request, now)
        if request.slot is None or request.turns is None:
            raise RuntimeError("a request ends that had no slot")
        del self._requests[request.slot]
        request.turns.release(request.slot)
        for slot in request.turns.taken_by_wake():
            granted = self._requests[slot]
            self._begin(granted.front, 1.0, granted)

    def _begin(self, seconds: float, width: float, work: Request | list[Request]) -> None:
        entry = (self._shared + seconds, next(self._numbers), width, work)
        heapq.heappush(self._work, entry)
        self._widen(width)

    def _widen(self, width: float) -> None:
        self._width = self._width + width if self._work else 0.0
        self._speed = min(1.0, self.cores / self._width) if self._width > 0 else 1.0
