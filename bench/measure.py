"""Measure one contender under one load, and notice what else the machine did meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from bench.load import load
from bench.load.limit import Figures, Limit, Way, ways_of
from bench.servers.contenders import Contender
from bench.servers.processes import TICK_MS, cpu_ms, memory_mb
from bench.servers.sessions import Engine

BUSY_ELSEWHERE = 0.08  # of the cores: rivals that are not asked anything take a part of it
PAUSE_S = 0.2
LEAST_WARM_S = 1.0
BATCHES = {"resnet": (1, 4, 8), "yolov5": (1,), "bert_base": (1, 8, 16)}


@dataclass(frozen=True)
class Sample:
    """One contender under one load in one round; times in milliseconds, of one request."""

    per_second: float
    p50: float
    p99: float
    cpu_ms: dict[str, float]
    """By process."""
    memory_mb: float
    elsewhere: float
    """The share of the cores that others on this machine used meanwhile."""


class Elsewhere:
    """Counts what so many cores did for others than the contender and the callers."""

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._since, self._busy, self._own = time.monotonic(), busy_ms(), time.process_time()

    def share(self, contender_ms: float) -> float:
        took = (time.monotonic() - self._since) * 1e3
        own = (time.process_time() - self._own) * 1e3 + contender_ms
        return max(0.0, (busy_ms() - self._busy - own) / took / self._cpus)


def busy_ms() -> float:
    """Return what the cores have worked since the start, and what the host gave to others."""
    line = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    used = [int(number) for number in line.split()[1:]]
    return (sum(used[:3]) + sum(used[5:8])) * TICK_MS


def say(text: str) -> None:
    """Show on standard error how far the measurement is."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def best_ways(
    limit: Limit,
    model: str,
    payload: Any,
    cpus: int,
    loads: Sequence[int],
    seconds: float,
    engines: Sequence[Engine],
) -> dict[int, Way]:
    """Measure the ways in which the limit can work, and return the best one for each load.

    For one caller that is the way with the shortest time to an answer; for several, the one with
    the most answers that has no more requests in hand than there are callers.
    """

    @cache
    def measured(way: Way) -> list[Figures]:
        return [limit.measure(way, seconds, payload) for _ in range(2)]

    def fastest(some: Iterable[Way]) -> Way:
        return max(some, key=lambda way: max(one.per_second for one in measured(way)))

    def of_batches(sizes: Collection[int]) -> list[Way]:
        return list(
            chain.from_iterable(
                ways_of(engine, cpus, size) for engine in engines for size in sorted(sizes)
            )
        )

    ways = of_batches(BATCHES[model])
    best, lone = fastest(ways), (way for way in ways if way.in_hand == 1)
    found: dict[int, Way] = {}
    for callers in loads:
        if callers == 1:
            found[1] = min(lone, key=lambda way: min(one.p50 for one in measured(way)))
        elif callers >= best.in_hand:
            found[callers] = best
        else:
            some = of_batches({1, max(1, callers // cpus), callers})
            found[callers] = fastest(way for way in some if way.in_hand <= callers)
    return found


def of_server(
    server: Contender, asked: Sequence[bytes], callers: int, seconds: float, cpus: int, rate: float
) -> Sample:
    """Ask a server in a closed loop.

    The callers send the whole requests of `asked` in turn. `rate` is how many answers per second
    can be expected, 0 if that is not known.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    # Until all have waited for all others once, their times are those of a burst on an idle server:
    # too short for the first ones, and for the last of 16 they were 1.25 times those of later.
    warm = max(LEAST_WARM_S, 2 * callers / rate if rate else 0)
    elsewhere, before = Elsewhere(cpus), cpu_ms(server.pid)
    loop = load.ask_in_a_loop(server.port, asked, callers, seconds, warm)
    used = cpu_ms(server.pid) - before
    share = elsewhere.share(used.total())
    return Sample(
        loop.per_second,
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        memory_mb(server.pid),
        share,
    )


def of_limit(limit: Limit, way: Way, payload: Any, seconds: float, cpus: int) -> Sample:
    """Let the in-process limit work in one way."""
    elsewhere = Elsewhere(cpus)
    came = limit.measure(way, seconds, payload)
    share = elsewhere.share(came.cpu_ms * came.per_second * seconds)
    spent = {"limit": came.cpu_ms}
    return Sample(came.per_second, came.p50, came.p99, spent, came.memory_mb, share)
