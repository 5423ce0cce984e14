"""Measure one contender under one load."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from bench.load import load
from bench.load.limit import Limit, Sample, Way, ways_of
from bench.servers.contenders import Contender
from bench.servers.processes import cpu_ms, memory_mb
from bench.servers.sessions import Engine

PAUSE_S = 0.2
LEAST_WARM_S = 1.0
BATCHES = {"resnet": (1, 4, 8), "yolov5": (1,), "bert_base": (1, 8, 16)}


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
    def measured(way: Way) -> list[Sample]:
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


def of_server(server: Contender, asked: bytes, callers: int, seconds: float, rate: float) -> Sample:
    """Ask a server in a closed loop.

    The callers send the whole request `asked`; `rate` is how many answers per second can be
    expected.

    Raises:
        LoadError: an answer was not 200, or none came.

    """
    # Until all have waited for all others once, their times are those of a burst on an idle server:
    # too short for the first ones, and for the last of 16 they were 1.25 times those of later.
    warm = max(LEAST_WARM_S, 2 * callers / rate)
    before = cpu_ms(server.pid)
    loop = load.ask_in_a_loop(server.port, [asked], callers, seconds, warm)
    used = cpu_ms(server.pid) - before
    return Sample(
        loop.per_second,
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        memory_mb(server.pid),
    )
