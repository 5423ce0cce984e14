"""Machines behind a load balancer, event by event.

A machine has the server's own slots (`dispatcher.execution.slots`: the same code), a queue before
each model, which a free run takes in batches, and cores that all work shares evenly: where it could
keep more cores busy than there are, all of it goes slower by the same factor.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.capacity.service import Service
from dispatcher.errors import TooManyRequests
from dispatcher.execution.slots import Caller, Slot, Slots, WaitingQueue
from dispatcher.settings import with_others

BALANCERS = ("random", "round-robin", "least")
SAME_TIME = 1e-12

Floats = npt.NDArray[np.float64]


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
    """One machine of some cores; `now` never goes back."""

    def __init__(
        self,
        cores: int,
        services: Mapping[str, Service],
        limits: Limits,
        draw: Callable[[], float],
        done: Callable[[Request, float], None],
        refused: Callable[[Request], None],
    ) -> None:
        self.cores, self.services = cores, services
        self.workers = [Turns(limits) for _ in range(limits.workers)]
        self.busy = 0.0
        """Seconds of its cores that were used."""
        self.version = 0
        self._draw, self._done, self._refused = draw, done, refused
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
        """Return the share of its slots in use."""
        total = sum(turns.total for turns in self.workers)
        return 1 - sum(turns.free for turns in self.workers) / total

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
            self._refused(request)
            return
        for slot in turns.taken_by_wake():
            self._refused(self._requests.pop(slot))
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


Rates = Sequence[tuple[float, float]]
"""Points of time (s) and requests a second, with straight lines between them."""


@dataclass
class Outcome:
    """What became of the requests.

    Args:
        arrived: the time of each.
        took: seconds of each; NaN where it was refused.
        models: by their number in `names`.
        names: of the models.
        utilisation: the mean share of the cores in use.
        saturation: the mean share of slots in use, at the scrapes.
        machines: times at which there were more of them, and how many.

    """

    arrived: Floats
    took: Floats
    models: npt.NDArray[np.int64]
    names: list[str]
    utilisation: float = 0.0
    saturation: float = 0.0
    machines: list[tuple[float, int]] = field(default_factory=list)

    def after(self, begin: float, end: float = math.inf) -> Outcome:
        """Return those that arrived within some time."""
        chosen = (self.arrived >= begin) & (self.arrived < end)
        return Outcome(
            self.arrived[chosen],
            self.took[chosen],
            self.models[chosen],
            self.names,
            self.utilisation,
            self.saturation,
            self.machines,
        )

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the answers came; infinite without any."""
        answered = self.took[~np.isnan(self.took)]
        return float(np.quantile(answered, share)) if len(answered) else math.inf

    def per_second(self) -> float:
        """Return the answers a second, from the first arrival to the last answer."""
        if not len(self.took) or np.isnan(self.took).all():
            return 0.0
        last = np.nanmax(self.arrived + self.took)
        return float((~np.isnan(self.took)).sum() / (last - self.arrived[0]))

    @property
    def refused(self) -> float:
        """The share of the requests that were refused."""
        return float(np.isnan(self.took).mean()) if len(self.took) else 0.0


class Scaler:
    """An autoscaler that only adds machines.

    Args:
        target: the mean saturation that it keeps.
        delay: seconds from its decision until a machine answers.
        most: machines.

    It is Kubernetes' HorizontalPodAutoscaler with its defaults (every 15 s, a tolerance of 10 %, at
    most twice as many or four more at a time, pods that are not ready counted as idle) on a metric
    that is scraped every 15 s and averaged over a minute, as docs/kubernetes.md configures it.
    """

    every = 15.0
    averaged = 4  # scrapes in a minute
    tolerance = 0.1

    def __init__(self, target: float, delay: float, most: int = 100_000) -> None:
        self.target, self.delay, self.most = target, delay, most
        self._seen: dict[int, deque[float]] = {}

    def scrape(self, machines: Sequence[Machine]) -> None:
        for number, machine in enumerate(machines):
            self._seen.setdefault(number, deque(maxlen=self.averaged)).append(machine.saturation())

    def wanted(self, ready: int, coming: int) -> int:
        """Return how many machines there should be."""
        means = [sum(seen) / len(seen) for seen in self._seen.values()]
        ratio = sum(means) / ready / self.target
        there = ready + coming
        if abs(ratio - 1) <= self.tolerance or ratio < 1:
            return there
        counted = sum(means) / there / self.target
        if counted <= 1 + self.tolerance:
            return there
        return min(self.most, max(2 * there, there + 4), math.ceil(counted * there))


def arrivals(rates: Rates, seed: int) -> Floats:
    """Return the times of a Poisson process with these rates."""
    times, levels = (np.array(column, float) for column in zip(*rates, strict=True))
    # The integral of the rate, fine enough that it may be taken as straight between two points.
    fine = np.unique(np.concatenate([np.linspace(times[0], times[-1], 2001), times]))
    level = np.interp(fine, times, levels)
    expected = np.concatenate([[0], np.cumsum((level[1:] + level[:-1]) / 2 * np.diff(fine))])
    random = np.random.default_rng([seed, 1])
    number = random.poisson(expected[-1])
    return np.interp(np.sort(random.uniform(0, expected[-1], number)), expected, fine)


def simulate(
    rates: Rates,
    mix: Mapping[str, float],
    services: Mapping[str, Service],
    machines: int,
    cores: int,
    *,
    balance: str = "random",
    limits: Limits | None = None,
    scaler: Scaler | None = None,
    seed: int = 1,
    service_seed: int | None = None,
) -> Outcome:
    """Let requests arrive, and return what became of them; equal arguments, equal outcome.

    Args:
        rates: of all requests together.
        mix: the share of each model in them.
        services: by model, on a machine of this size.
        machines: at the beginning.
        cores: of each machine.
        balance: how a machine is chosen, one of `BALANCERS`.
        limits: of each machine; the server's defaults for its size.
        scaler: adds machines.
        seed: of the arrivals.
        service_seed: of everything else, the same if left out.

    """
    service_seed = seed if service_seed is None else service_seed
    limits = limits or Limits(workers=workers_of(cores))
    when = arrivals(rates, seed)
    random = np.random.default_rng([service_seed, 2])
    names = list(mix)
    models = random.choice(len(names), len(when), p=list(mix.values()))
    shares = random.uniform(size=len(when)).tolist()
    took = np.full(len(when), math.nan)
    outcome = Outcome(when, took, models, names)
    draws = iter(np.random.default_rng([service_seed, 3]).uniform(size=len(when) + 1).tolist())

    def done(request: Request, now: float) -> None:
        took[request.number] = now - when[request.number]

    def more(number: int) -> list[Machine]:
        return [
            Machine(cores, services, limits, draws.__next__, done, lambda _: None)
            for _ in range(number)
        ]

    fleet, coming = more(machines), 0
    outcome.machines.append((0.0, machines))
    order = count()
    events: list[tuple[float, int, Any, int]] = []
    choose = chooser(balance, np.random.default_rng([service_seed, 4]), len(when))
    end, saturations = rates[-1][0], []
    heapq.heappush(events, (Scaler.every, next(order), None, 0))
    number, born = 0, [0.0] * machines
    while number < len(when) or events:
        if number < len(when) and (not events or when[number] <= events[0][0]):
            now = float(when[number])
            machine = choose(fleet)
            model = names[models[number]]
            request = Request(number, model, services[model].front.at(shares[number]))
            machine.arrive(request, now)
            number += 1
        else:
            now, _, machine, version = heapq.heappop(events)
            if machine is None:  # a scrape
                saturations.append(sum(one.saturation() for one in fleet) / len(fleet))
                if scaler:
                    scaler.scrape(fleet)
                    extra = scaler.wanted(len(fleet), coming) - len(fleet) - coming
                    if extra > 0:
                        coming += extra
                        heapq.heappush(events, (now + scaler.delay, next(order), extra, 0))
                if now + Scaler.every <= end:
                    heapq.heappush(events, (now + Scaler.every, next(order), None, 0))
                continue
            if isinstance(machine, int):  # so many are ready
                coming -= machine
                fleet += more(machine)
                born += [now] * machine
                outcome.machines.append((now, len(fleet)))
                continue
            if version != machine.version:
                continue
            machine.finish(now)
        machine.version += 1
        if (due := machine.due()) < math.inf:
            heapq.heappush(events, (due, next(order), machine, machine.version))
    lived = sum(max(end, now) - since for since in born)
    outcome.utilisation = sum(one.busy for one in fleet) / (lived * cores) if lived else 0.0
    outcome.saturation = float(np.mean(saturations)) if saturations else 0.0
    return outcome


def chooser(
    balance: str, random: np.random.Generator, most: int
) -> Callable[[list[Machine]], Machine]:
    """Return what picks a machine for a request."""
    shares, turn = iter(random.uniform(size=most).tolist()), count()
    if balance == "random":
        return lambda fleet: fleet[int(next(shares) * len(fleet))]
    if balance == "round-robin":
        return lambda fleet: fleet[next(turn) % len(fleet)]
    return lambda fleet: min(fleet, key=lambda one: one.load)
