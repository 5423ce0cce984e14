"""Lets a canary fall back by itself where it fails, is slow or answers something else.

Every web worker writes down how its calls ended; the one that also probes the models reads what all
of them wrote, twice a second, in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dispatcher.background import start_rounds
from dispatcher.rollout.outcomes import (
    CLOSE,
    DIFFERENT,
    ERROR,
    LONG_S,
    SAME,
    Outcome,
    Outcomes,
    Window,
)
from dispatcher.rollout.plan import CANARY, STABLE, Canary, Plan
from dispatcher.rollout.rollouts import Rollouts

LOOK_S = 0.5
# Fewer may be chance: the first run of each instance may be slow, whatever the version.
LEAST, LEAST_SLOW = 3, 5
LEAST_STABLE = 20  # answers of the stable version, from which its p99 says something
TIMES_STABLE = 2.0  # the p99 of the stable version, where no limit is set
STUCK_TIMES = 10.0  # the limit: what takes so long may hang, and then `LEAST` answers are enough
SLOW_SHARE = 0.01  # of all answers, which take longer than their p99


def find_reason(plan: Plan, outcomes: Iterable[Outcome]) -> str:
    """Return why a plan's canary has to fall back; empty where it is within its limits."""
    canary = plan.canary
    if not canary or plan.back:
        return ""
    window = Window(plan, outcomes)
    shadowed = str(plan.shadow) == str(canary)
    return (
        find_failures(canary, window)
        or find_slow(canary, window)
        or (shadowed and find_other(canary, window))
        or ""
    )


def find_failures(canary: Canary, window: Window) -> str:
    """Return how many answers failed if they are beyond the limit."""
    tried, stable = window.answers[CANARY], window.answers[STABLE]
    usual = stable.failed / max(stable.count, 1)
    if tried.failed < LEAST or tried.failed <= (canary.errors + usual) * tried.count:
        return ""
    return (
        f"{tried.failed} of its {tried.count} answers failed, and {stable.failed} of"
        f" {stable.count} of the stable version (errors = {canary.errors:g})"
    )


def find_slow(canary: Canary, window: Window) -> str:
    """Return how many answers were slow if their p99 is beyond the limit."""
    tried, stable = window.answers[CANARY], window.answers[STABLE]
    limit, whose, usual = canary.p99_ms, "p99_ms", SLOW_SHARE
    if limit is None:
        p99 = stable.percentile(1 - SLOW_SHARE)
        if p99 is None or len(stable.times) < LEAST_STABLE:
            return ""
        limit, whose = TIMES_STABLE * p99, f"{TIMES_STABLE:g} times the stable version's p99"
        usual += sum(ms > limit for ms in stable.times) / len(stable.times)
    slow = sum(ms > limit for ms in tried.times)
    stuck = sum(ms > max(STUCK_TIMES * limit, 1000 * LONG_S) for ms in tried.times)
    if (slow < LEAST_SLOW and stuck < LEAST) or slow <= usual * len(tried.times):
        return ""
    return f"{slow} of its {len(tried.times)} answers took more than {limit:.4g} ms ({whose})"


def find_other(canary: Canary, window: Window) -> str:
    """Return how many of the compared answers differ if they are beyond the limit."""
    found = window.found
    other = found[DIFFERENT] + found[ERROR]
    count = other + found[SAME] + found[CLOSE]
    if other < LEAST or other <= canary.disagreement * count:
        return ""
    return (
        f"{other} of {count} answers that were compared are different"
        f" (disagreement = {canary.disagreement:g})"
    )


@dataclass
class Guard:
    """Writes the outcomes of a worker, and in the elected one looks at those of all."""

    rollouts: Rollouts
    outcomes: Outcomes
    elected: Callable[[], bool]  # whether this worker is the one that decides
    _seen: dict[str, Outcome] = field(default_factory=dict)  # the last one, by model

    def start(self) -> None:
        """Look again and again, in a daemon thread."""
        start_rounds(self.look, "guard", LOOK_S)

    def look(self) -> None:
        """Write what has ended; have canaries fall back that are beyond their limits."""
        self.outcomes.look(time.monotonic())
        self.outcomes.write()
        if not self.elected():
            return
        plans = self.rollouts.plans
        for name, plan in plans.items():
            last = self.outcomes.last(name)
            if last and self._seen.get(name) is not last[-1]:
                self._seen[name] = last[-1]
                if why := find_reason(plan, last):
                    self.rollouts.fall_back(name, why, plan.since)
        self.outcomes.tidy([name for name, plan in plans.items() if plan.variants()])
