"""Measure how a model's runs share the cores best: in turn or side by side, and joined or not."""

from __future__ import annotations

import hashlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Semaphore
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]
    """Runs the model once, for so many requests together."""

LEAST_GAIN, LEAST_JOINED = 0.9, 1.25
"""What runs side by side have to bring at least, and what those of several requests have to.

Each of several requests waits for all of them.
"""

TOGETHER = 4  # requests, if they share runs

PREPARATION = 0.15
"""What a request needs of the same cores besides its run, as a share of that on one core: what a
JPEG for ResNet-50 costs in the web worker."""

BUSY = 1.2
"""Times its processor time that a run on one core takes where others need the cores too."""

MOST_S = 0.5  # of a run that is measured: some 20 for each core follow

TIMES = 3
BLOCK = bytes(2**16)


@dataclass(frozen=True)
class MeasuredRuns:
    """What was measured of a model's runs on so many cores.

    Up to `in_turn` requests at a time are answered soonest in turn, each on all cores; more of them
    `at_once` side by side, which gives `gain` times as many answers for `megabytes` of memory.
    `joined` says whether requests that share a run cost less.
    """

    cpus: int
    at_once: int
    in_turn: int
    joined: bool
    gain: float = 1.0
    megabytes: int = 0

    def sentence(self) -> str:
        """Return it in words, for the log."""
        said = f"a run has all {self.cpus} cores"
        if self.at_once > 1:
            said = (
                f"up to {self.in_turn} at a time run on all {self.cpus} cores, more of them "
                f"{self.at_once} side by side: {self.gain:.2f} times the answers, "
                f"{self.megabytes} MB"
            )
        return f"{said}; {'requests share runs' if self.joined else 'one request per run'}"


class Busy(Exception):
    """Others need the cores, so that nothing can be measured."""


def measure_runs(
    in_turn: Run, beside: Run, at_once: int, cpus: int, most_joined: int
) -> MeasuredRuns:
    """Return how the runs of a model share the cores best.

    `in_turn` has all cores, `beside` the share of one of `at_once`.

    Raises Exception: what the engine raises. Raises Busy: others need the cores at the moment.
    """
    spent = processor_time(beside)
    if spent > MOST_S:
        raise ValueError(f"a run takes {spent:.1f} s of a core.")
    if min(wall_time(beside) for _ in range(TIMES)) > BUSY * spent:
        raise Busy
    ways = [(in_turn, 1, 1), (beside, at_once, 1)]
    if most_joined >= TOGETHER:
        ways += [(run, most, max(1, TOGETHER // most)) for run, most, _ in ways]
    best = [0.0] * len(ways)
    for _ in range(TIMES):
        for place, way in enumerate(ways):
            per_s = answer_callers(*way, cpus, spent * PREPARATION)
            best[place] = max(best[place], per_s)
    apart, together = best[:2], best[2:]
    joined = max(together, default=0.0) > LEAST_JOINED * max(apart)
    gain = together[1] / together[0] if joined else apart[1] / apart[0]
    if at_once == 1 or gain < (LEAST_JOINED if joined else LEAST_GAIN):
        return MeasuredRuns(cpus, 1, 1, joined)
    lone_s = min(wall_time(in_turn) for _ in range(1 + TIMES))
    few = max(1, int(at_once / apart[1] / lone_s))
    return MeasuredRuns(cpus, at_once, min(few, at_once - 1), joined, round(gain, 2))


def wall_time(run: Run) -> float:
    begun = time.perf_counter()
    run(1)
    return time.perf_counter() - begun


def processor_time(run: Run) -> float:
    """Return the seconds of a core that a run needs; the first, which prepares, is not counted."""
    run(1)
    best = math.inf
    for _ in range(TIMES):
        begun = time.process_time()
        run(1)
        best = min(best, time.process_time() - begun)
    return best


def answer_callers(run: Run, at_once: int, requests: int, cpus: int, prepare_s: float) -> float:
    """Return the answers a second to callers whose requests are prepared on the same cores."""
    free = Semaphore(at_once)

    def ask(_: int) -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + prepare_s * requests:
            hashlib.sha256(BLOCK)  # other threads run meanwhile
        with free:
            run(requests)

    callers, runs = 2 * cpus, max(cpus, 2 * cpus // requests)
    with ThreadPoolExecutor(callers) as pool:
        begun = time.perf_counter()
        list(pool.map(ask, range(runs)))
        return runs * requests / (time.perf_counter() - begun)
