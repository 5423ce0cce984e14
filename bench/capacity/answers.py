"""How many machines a traffic needs, and what a surge takes with an autoscaler."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from bench.capacity.machine import Limits, workers_of
from bench.capacity.service import Service, Sizes, on_cores
from bench.capacity.simulation import Outcome, Rates, Scaler, simulate

REQUESTS = 20_000  # of one simulation: some 200 are slower than its p99
LEAST_S = 60.0  # of its time
WARM = 0.1  # of its time, not counted
MOST_SIMULATED = 12  # machines; of more, so many get their share of the traffic
REFUSED = 0.001  # of the requests may be refused
WINDOW_S, STEP_S = 60.0, 15.0
BEFORE_S, AFTER_S = 120.0, 420.0
SURGED = 8  # machines at the beginning of a surge that is simulated


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Args:
        sizes: the measured service of each model.
        mix: the share of each in the requests.
        p99: seconds within which 99 of 100 answers are to come.
        balance: how the load balancer chooses a machine.
        queue: MODEL_SERVER_QUEUE.
        threads: MODEL_SERVER_THREADS.
        seed: of the simulations.
        requests: of one simulation.

    """

    sizes: Mapping[str, Sizes]
    mix: Mapping[str, float]
    p99: float
    balance: str = "random"
    queue: int = 64
    threads: int = 16
    seed: int = 1
    requests: int = REQUESTS

    def services(self, cores: int) -> dict[str, Service]:
        return {name: on_cores(self.sizes[name], cores) for name in self.mix}

    def limits(self, cores: int) -> Limits:
        return Limits(self.threads, self.queue, workers_of(cores))

    def core_seconds(self, cores: int) -> float:
        """Return what a request takes of the cores on average."""
        services = self.services(cores)
        return sum(part * services[name].core_seconds() for name, part in self.mix.items())

    def alone(self, cores: int) -> float:
        """Return the p99 of lone requests: no number of machines has a lower one."""
        return max(service.alone(0.99) for service in self.services(cores).values())

    def holds(self, outcome: Outcome) -> bool:
        return outcome.quantile(0.99) <= self.p99 and outcome.refused <= REFUSED

    def run(self, rates: Rates, machines: int, cores: int, scaler: Scaler | None = None) -> Outcome:
        return simulate(
            rates,
            self.mix,
            self.services(cores),
            machines,
            cores,
            balance=self.balance,
            limits=self.limits(cores),
            scaler=scaler,
            seed=self.seed,
        )

    def steady(self, rate: float, machines: int, cores: int) -> Outcome:
        """Return what machines make of a constant traffic, once they have got going."""
        simulated = min(machines, MOST_SIMULATED)
        rate *= simulated / machines
        lasts = max(LEAST_S, self.requests / rate)
        return self.run([(0.0, rate), (lasts, rate)], simulated, cores).after(WARM * lasts)


@dataclass(frozen=True)
class Answer:
    """The fewest machines of a size for a traffic.

    Args:
        rate: requests a second.
        cores: of a machine.
        machines: 0 where no number of them is fast enough.
        outcome: of the simulation; none then.

    """

    rate: float
    cores: int
    machines: int
    outcome: Outcome | None


def needed(plan: Plan, rate: float, cores: int) -> Answer:
    """Return the fewest machines that keep the p99."""
    if plan.alone(cores) > plan.p99:
        return Answer(rate, cores, 0, None)
    tried: dict[int, Outcome] = {}

    def enough(machines: int) -> bool:
        tried[machines] = plan.steady(rate, machines, cores)
        return plan.holds(tried[machines])

    least = max(1, math.floor(rate * plan.core_seconds(cores) / cores))
    machines = fewest(enough, least, 50 * least + 50)
    return Answer(rate, cores, machines, tried.get(machines))


def fewest(enough: Callable[[int], bool], least: int, most: int) -> int:
    """Return the smallest number, from the least on, that is enough; 0 if even the most is not."""
    low, high = least - 1, least
    while not enough(high):
        if high >= most:
            return 0
        low, high = high, min(most, max(high + 1, round(high * 1.2)))
    while high - low > max(1, high // 200):  # to half a percent
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class Surge:
    """Traffic that grows: `factor` times as much, evenly within `over` seconds."""

    factor: float
    over: float
    delay: float
    """Seconds from the autoscaler's decision until a machine answers."""


@dataclass(frozen=True)
class Surged:
    """What a surge did.

    Args:
        before: machines that the traffic before it needs.
        after: that the traffic after it needs.
        target: the mean saturation that the autoscaler keeps.
        worst: the highest p99 of a minute, in seconds, with `before` machines at the beginning.
        refused: the share of the requests that were refused in the worst minute.
        restored: seconds from its beginning until each later minute keeps the p99; infinite if that
            was not simulated any more.
        headroom: the machines at the beginning that keep it throughout.

    """

    surge: Surge
    before: int
    after: int
    target: float
    worst: float
    refused: float
    restored: float
    headroom: int


def surged(
    plan: Plan, before: Answer, after: Answer, surge: Surge, target: float = 0.0
) -> Surged | None:
    """Return what a surge does, and how many machines bear it; None where no number does.

    Args:
        plan: the models and the p99.
        before: the machines for the traffic before the surge.
        after: those for the traffic after it, of the same size.
        surge: what happens.
        target: of the autoscaler; 0 takes the saturation that the machines have before.

    """
    if not before.machines or not after.machines or before.outcome is None:
        return None
    scale = max(1.0, before.machines / SURGED)
    begin = max(1, round(before.machines / scale))
    rate, cores = before.rate * begin / before.machines, before.cores
    target = target or before.outcome.saturation
    rates = [
        (0.0, rate),
        (BEFORE_S, rate),
        (BEFORE_S + surge.over + 1e-3, rate * surge.factor),
        (BEFORE_S + surge.over + AFTER_S, rate * surge.factor),
    ]

    @cache
    def outcome(machines: int) -> Outcome:
        return plan.run(rates, machines, cores, Scaler(target, surge.delay))

    def enough(machines: int) -> bool:
        return all(plan.holds(window) for _, window in windows(outcome(machines)))

    found = windows(outcome(begin))
    bad = [start for start, window in found if not plan.holds(window)]
    restored = bad[-1] + WINDOW_S - BEFORE_S if bad else 0.0
    if bad and bad[-1] == found[-1][0]:
        restored = math.inf
    most = max(begin, math.ceil(after.machines / scale)) + 2
    headroom = begin + bisect_left(range(begin, most), 1, key=enough)
    return Surged(
        surge,
        before.machines,
        after.machines,
        target,
        max(window.quantile(0.99) for _, window in found),
        max(window.refused for _, window in found),
        restored,
        round(headroom * before.machines / begin),
    )


def windows(outcome: Outcome) -> list[tuple[float, Outcome]]:
    """Return the minutes of an outcome from the surge's beginning on, every quarter of one."""
    last = float(outcome.arrived[-1])
    count = max(1, int((last - BEFORE_S - WINDOW_S) // STEP_S) + 1)
    starts = [BEFORE_S + STEP_S * number for number in range(count)]
    return [(start, outcome.after(start, start + WINDOW_S)) for start in starts]
