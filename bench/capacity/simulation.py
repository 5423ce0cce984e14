"""Machines behind a load balancer, event by event, and an autoscaler that adds some."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from bench.capacity.machine import Limits, Machine, Request, workers_of
from bench.capacity.service import Service

SCRAPE_S = 15.0  # also between two decisions of the autoscaler
BALANCERS = ("random", "round-robin", "least")
Floats = npt.NDArray[np.float64]


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
        saturation: the mean of the machines' saturations, at the scrapes.
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

    averaged = 4  # scrapes in a minute
    tolerance = 0.1

    def __init__(self, target: float, delay: float, most: int = 100_000) -> None:
        self.target, self.delay, self.most = target, delay, most
        self.seen: dict[int, deque[float]] = {}

    def scrape(self, machines: Sequence[Machine]) -> None:
        for number, machine in enumerate(machines):
            self.seen.setdefault(number, deque(maxlen=self.averaged)).append(machine.saturation())

    def wanted(self, ready: int, coming: int) -> int:
        """Return how many machines there should be."""
        means = [sum(seen) / len(seen) for seen in self.seen.values()]
        ratio = sum(means) / ready / self.target
        there = ready + coming
        if abs(ratio - 1) <= self.tolerance or ratio < 1:
            return there
        counted = sum(means) / there / self.target
        if counted <= 1 + self.tolerance:
            return there
        return min(self.most, max(2 * there, there + 4), math.ceil(round(counted * there, 6)))


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
    when = arrivals(rates, seed)
    others = [np.random.default_rng([service_seed or seed, part]) for part in (2, 3, 4)]
    names = list(mix)
    models = others[0].choice(len(names), len(when), p=list(mix.values()))
    shares = others[0].uniform(size=len(when)).tolist()
    outcome = Outcome(when, np.full(len(when), math.nan), models, names)
    draws = iter(others[1].uniform(size=len(when) + 1).tolist())

    def done(request: Request, now: float) -> None:
        outcome.took[request.number] = now - when[request.number]

    def made() -> Machine:
        its = limits or Limits(workers=workers_of(cores))
        return Machine(cores, services, its, draws.__next__, done)

    fleet = Fleet(made, machines, chooser(balance, others[2], len(when)), scaler, rates[-1][0])
    for number, (at, model) in enumerate(zip(when.tolist(), models.tolist(), strict=True)):
        fleet.until(at)
        name = names[model]
        fleet.arrive(Request(number, name, services[name].front.at(shares[number])), at)
    fleet.until(math.inf)
    outcome.utilisation = fleet.busy() / cores
    outcome.saturation = fleet.saturation / max(1, fleet.scrapes)
    outcome.machines = fleet.history
    return outcome


class Fleet:
    """Machines, the events on them, and the scrapes and decisions of an autoscaler.

    Args:
        make: makes a machine.
        machines: at the beginning.
        choose: picks one for a request.
        scaler: adds some.
        end: of the arrivals; nothing is scraped or added later.

    """

    def __init__(
        self,
        make: Callable[[], Machine],
        machines: int,
        choose: Callable[[list[Machine]], Machine],
        scaler: Scaler | None,
        end: float,
    ) -> None:
        self.machines = [make() for _ in range(machines)]
        self.history = [(0.0, machines)]
        self.saturation, self.scrapes = 0.0, 0
        self._make, self._choose, self._scaler, self._end = make, choose, scaler, end
        self._coming, self._now = 0, 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        if end >= SCRAPE_S:
            self._at(SCRAPE_S, self._scrape)

    def arrive(self, request: Request, now: float) -> None:
        machine = self._choose(self.machines)
        machine.arrive(request, now)
        self._follow(machine)

    def until(self, end: float) -> None:
        """Let everything happen that is due before a time."""
        while self._events and self._events[0][0] < end:
            self._now, _, event = heapq.heappop(self._events)
            event(self._now)

    def busy(self) -> float:
        """Return how many cores of a machine were used on average, while it was there."""
        last = max(self._end, self._now)
        starts = [since for since, _ in self.history]
        added = np.diff([0, *(number for _, number in self.history)])
        lived = float(((last - np.array(starts)) * added).sum())
        return sum(one.busy for one in self.machines) / lived if lived else 0.0

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _follow(self, machine: Machine) -> None:
        """Come back to a machine when its next work ends, unless something changes before."""
        machine.version += 1
        version = machine.version
        if (due := machine.due()) == math.inf:
            return

        def finish(now: float) -> None:
            if version == machine.version:
                machine.finish(now)
                self._follow(machine)

        self._at(due, finish)

    def _scrape(self, now: float) -> None:
        self.scrapes += 1
        self.saturation += sum(one.saturation() for one in self.machines) / len(self.machines)
        if self._scaler:
            self._scaler.scrape(self.machines)
            there = len(self.machines) + self._coming
            added = self._scaler.wanted(len(self.machines), self._coming) - there
            if added > 0:
                self._coming += added
                self._at(now + self._scaler.delay, lambda ready: self._add(added, ready))
        if now + SCRAPE_S <= self._end:
            self._at(now + SCRAPE_S, self._scrape)

    def _add(self, number: int, now: float) -> None:
        self._coming -= number
        self.machines += [self._make() for _ in range(number)]
        for machine in self.machines[-number:]:
            machine.advance(now)
            machine.busy = 0.0
        self.history.append((now, len(self.machines)))


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
