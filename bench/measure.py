"""Measure in rounds: all contenders in turn, at every load."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.load import load, work
from bench.load.limit import Figures, Limit, Way, divided, ways_of
from bench.servers.contenders import Contender, Skipped
from bench.servers.processes import TICK_MS, cpu_ms, memory_mb
from bench.servers.sessions import EXACT, Engine, engines_at

LIMIT = "in-process limit"
# The same program with no more requests at a time than there are callers: where the limit runs
# batches that so few cannot fill, this is what there is to be had.
IN_HAND = "limit, as many in hand"
LIMITS = (LIMIT, IN_HAND)
# A Flask route on the same Triton, without anything that this server's web worker does besides.
BARE = "bare route"
BUSY_ELSEWHERE = 0.08  # of the cores: rivals that are not asked anything take a part of it
PAUSE_S = 0.2
LEAST_WARM_S = 0.5


@dataclass(frozen=True)
class Sample:
    """One contender at one load in one round; times in milliseconds, of one request."""

    model: str
    contender: str
    callers: int
    round: int
    per_second: float
    p50: float
    p99: float
    cpu_ms: dict[str, float]
    memory_mb: float
    elsewhere: float
    """The share of the cores that others on this machine used meanwhile."""


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds: the median, and the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    @property
    def noise(self) -> float:
        """Half of the range, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


@dataclass
class Results:
    """All measurements at one precision, for the tables and the JSON file."""

    cpus: int
    rounds: int
    seconds: float
    precision: str = EXACT
    """What MODEL_PRECISION the server has."""
    samples: list[Sample] = field(default_factory=list)
    ways: dict[str, dict[str, str]] = field(default_factory=dict)
    reference_ms: float = 0.0
    """The processor time of a ResNet-50 inside of ONNX Runtime; 0 if unknown."""
    patience_s: float = 0.0
    """For so long in all, measurements are repeated that others on this machine disturbed."""
    skipped: dict[str, str] = field(default_factory=dict)
    capacity: list[float] = field(default_factory=list)
    """Answers per second of a closed loop by the program that asks the open loops."""
    open_loop: list[dict[str, Any]] = field(default_factory=list)
    nothing: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    """Requests per second of the model that does nothing, of a Flask route without a model, and of
    one that asks that model and does nothing else; of each round, by callers."""
    start_s: list[float] = field(default_factory=list)
    idle_mb: dict[str, float] = field(default_factory=dict)
    growth: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def lasts(self, model: str) -> float:
        """Return the seconds of one measurement: longer for the model that takes longest."""
        return self.seconds * (2 if model == "yolov5" else 1)

    def of(self, model: str, contender: str, callers: int) -> dict[int, Sample]:
        """Return the samples by round; the disturbed ones only where there are no others."""
        every = {
            one.round: one
            for one in self.samples
            if (one.model, one.contender, one.callers) == (model, contender, callers)
        }
        quiet = {n: one for n, one in every.items() if one.elsewhere <= BUSY_ELSEWHERE}
        return quiet or every

    def contenders(self, model: str) -> list[str]:
        return list(dict.fromkeys(one.contender for one in self.samples if one.model == model))

    def spread(
        self, model: str, contender: str, callers: int, figure: Callable[[Sample], float]
    ) -> Spread | None:
        values = [figure(one) for one in self.of(model, contender, callers).values()]
        return Spread.of(values) if values else None

    def ratio(
        self, model: str, one: str, other: str, callers: int, figure: Callable[[Sample], float]
    ) -> Spread | None:
        """Return a figure of one contender as a share of another's in the same round."""
        ours, theirs = self.of(model, one, callers), self.of(model, other, callers)
        both = [n for n in ours if n in theirs]
        if not both:  # one was disturbed where the other was not
            return self._across(ours, theirs, figure)
        values = [figure(ours[n]) / figure(theirs[n]) for n in both]
        return Spread.of(values) if values else None

    @staticmethod
    def _across(
        ours: dict[int, Sample], theirs: dict[int, Sample], figure: Callable[[Sample], float]
    ) -> Spread | None:
        if not ours or not theirs:
            return None
        one, other = (Spread.of([figure(s) for s in side.values()]) for side in (ours, theirs))
        return Spread(one.median / other.median, one.low / other.high, one.high / other.low)


class Elsewhere:
    """Counts what the cores did for others than the contender and the callers.

    Args:
        cpus: how many cores that are.
        only: their numbers; all of the machine if empty.

    """

    def __init__(self, cpus: int, only: Collection[int] = ()) -> None:
        self._cpus, self._only = cpus, only
        self._since, self._busy, self._own = time.monotonic(), busy_ms(only), time.process_time()

    def share(self, contender_ms: float) -> float:
        took = (time.monotonic() - self._since) * 1e3
        own = (time.process_time() - self._own) * 1e3 + contender_ms
        return max(0.0, (busy_ms(self._only) - self._busy - own) / took / self._cpus)


def busy_ms(only: Collection[int] = ()) -> float:
    wanted = {f"cpu{number}" for number in only} or {"cpu"}
    lines = (line.split() for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines())
    used = ([int(number) for number in fields] for name, *fields in lines if name in wanted)
    return sum(sum(fields[:3]) + sum(fields[5:7]) for fields in used) * TICK_MS


def say(text: str) -> None:
    """Tell the one who waits how far it is."""
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()


def best_ways(
    results: Results, repository: Path, model: str, loads: Sequence[int], seconds: float
) -> tuple[dict[str, Way], list[Any]]:
    """Return the ways in which the limit is best, by their use, and the right answer."""
    payload, cpus = work.payload(model), results.cpus
    with Limit(repository, model) as probe:
        right = probe.answer(payload)
        ways = sweep(probe, model, payload, cpus, loads, seconds, engines_at(results.precision))
        if model == "resnet":
            single = divided(Engine.ONNXRUNTIME, cpus, 1)
            results.reference_ms = probe.measure(single, seconds, payload).engine_ms
    results.ways[model] = {use: str(way) for use, way in ways.items()}
    say(f"{model}: the limit is best with {ways['throughput']}; for one caller {ways['lone']}")
    return ways, right


def sweep(
    limit: Limit,
    modelname: str,
    payload: Any,
    cpus: int,
    loads: Sequence[int],
    seconds: float,
    engines: Sequence[Engine],
) -> dict[str, Way]:
    """Return the ways in which the limit is best.

    That is in throughput, for a caller alone, and with as many requests in hand as some loads have
    callers, where the first has more.
    """
    batches = {"resnet": (1, 4, 8), "yolov5": (1,), "bert_base": (1, 8, 16)}[modelname]
    ways = [way for engine in engines for batch in batches for way in ways_of(engine, cpus, batch)]

    @cache
    def measured(way: Way) -> list[Figures]:
        return [limit.measure(way, seconds, payload) for _ in range(2)]

    def fastest(some: Iterable[Way]) -> Way:
        return max(some, key=lambda way: max(one.per_second for one in measured(way)))

    best = {
        "throughput": fastest(ways),
        "lone": min(
            (way for way in ways if way.in_hand == 1),
            key=lambda way: min(one.p50 for one in measured(way)),
        ),
    }
    for callers in loads:
        if 1 < callers < best["throughput"].in_hand:
            fitting = chain.from_iterable(
                ways_of(engine, cpus, batch)
                for engine in engines
                for batch in {1, max(1, callers // cpus), callers}
            )
            best[in_hand(callers)] = fastest(way for way in fitting if way.in_hand <= callers)
    return best


def in_hand(callers: int) -> str:
    """Return the name of the limit's best way, with no more requests at once."""
    return f"{callers} in hand"


def sample(
    server: Contender, model: str, asked: bytes, callers: int, number: int, results: Results
) -> Sample:
    """Ask one contender."""
    known = results.of(model, LIMIT, callers).values()
    # Until all have waited for all others once, their times are those of a burst on an idle server:
    # too short for the first ones, and for the last of 16 they were 1.25 times those of later.
    warm = max(LEAST_WARM_S, *(2 * callers / one.per_second for one in known), 0)
    elsewhere, before = Elsewhere(results.cpus), cpu_ms(*server.pids)
    loop = load.closed_loop(server.port, [asked], callers, results.lasts(model), warm)
    used = cpu_ms(*server.pids) - before
    share = elsewhere.share(used.total())
    return Sample(
        model,
        server.name,
        callers,
        number,
        loop.per_second,
        loop.percentile(0.5),
        loop.percentile(0.99),
        {name: spent / loop.answers for name, spent in used.items()},
        sum(size for _, size in memory_mb(*server.pids)),
        share,
    )


def limit_sample(
    limit: Limit,
    name: str,
    way: Way,
    model: str,
    payload: Any,
    callers: int,
    number: int,
    results: Results,
) -> Sample:
    """Let the limit work one way."""
    elsewhere = Elsewhere(results.cpus)
    figures = limit.measure(way, results.lasts(model), payload)
    share = elsewhere.share(figures.cpu_ms * figures.per_second * results.lasts(model))
    return Sample(
        model,
        name,
        callers,
        number,
        figures.per_second,
        figures.p50,
        figures.p99,
        {"engine": figures.engine_ms, "outside": figures.cpu_ms - figures.engine_ms},
        figures.memory_mb,
        share,
    )


@contextmanager
def started(
    wanted: Sequence[Callable[[], Contender]],
    model: str,
    payload: Any,
    right: list[Any],
    results: Results,
) -> Iterator[list[Contender]]:
    """Start contenders one after the other; note and skip those that fail."""
    with ExitStack() as stack:
        running = []
        for make in wanted:
            try:
                contender = make()
                if contender.process is None:
                    stack.callback(contender.stop)
                    contender.start()
                contender.wait(payload, model, right)
            except Skipped as reason:
                name = getattr(getattr(make, "func", make), "__name__", "it")
                results.skipped[f"{name}, {model}"] = str(reason)
                say(f"skipped {name} for {model}: {reason}")
                continue
            say(f"{contender.name} answers {model}")
            running.append(contender)
        yield running


def rounds(
    results: Results,
    repository: Path,
    model: str,
    loads: Sequence[int],
    wanted: Sequence[Callable[[], Contender]],
    ways: Mapping[str, Way],
    right: list[Any],
) -> None:
    """Measure one model: the limit in its best ways, and all contenders, in turn."""
    payload = work.payload(model)
    with (
        Limit(repository, model) as limit,
        started(wanted, model, payload, right, results) as contenders,
    ):
        for number in range(results.rounds):
            for callers in loads:
                its = {LIMIT: ways["lone" if callers == 1 else "throughput"]}
                if some := ways.get(in_hand(callers)):
                    its[IN_HAND] = some
                for name, way in its.items():
                    measured = partial(
                        limit_sample, limit, name, way, model, payload, callers, number, results
                    )
                    note(results, quietly(results, measured))
                for server in turned(contenders, number):
                    time.sleep(PAUSE_S)
                    try:
                        asked = server.request(payload)
                        measured = partial(sample, server, model, asked, callers, number, results)
                        note(results, quietly(results, measured))
                    except load.LoadError as error:
                        key = f"{server.name}, {model}, {callers} callers"
                        results.skipped[key] = str(error)
                        say(f"{key}: {error}")


def turned(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Return them with another one first in each round."""
    first = number % max(1, len(contenders))
    return [*contenders[first:], *contenders[:first]]


class Disturbed(Protocol):
    """A measurement that others may have disturbed."""

    @property
    def elsewhere(self) -> float:
        """The share of the cores that others on this machine used meanwhile."""


Measurement = TypeVar("Measurement", bound=Disturbed)


def quietly(results: Results, measured: Callable[[], Measurement]) -> Measurement:
    """Measure, again while other programs disturb it; return the quietest run."""
    best = measured()
    while best.elsewhere > BUSY_ELSEWHERE and results.patience_s > 0:
        before = time.monotonic()
        while results.patience_s > time.monotonic() - before and busy_now(results.cpus):
            time.sleep(PAUSE_S)
        best = min(best, measured(), key=lambda one: one.elsewhere)
        results.patience_s -= time.monotonic() - before
    return best


def busy_now(cpus: int) -> bool:
    elsewhere = Elsewhere(cpus)
    time.sleep(1)
    return elsewhere.share(0) > BUSY_ELSEWHERE


def note(results: Results, one: Sample) -> None:
    results.samples.append(one)
    disturbed = f", {one.elsewhere:.0%} of the cores used by others" * (
        one.elsewhere > BUSY_ELSEWHERE
    )
    say(
        f"round {one.round + 1} {one.model} {one.callers:2} callers: {one.contender:22} "
        f"{one.per_second:7.1f}/s, p50 {one.p50:6.0f} ms, p99 {one.p99:6.0f} ms{disturbed}"
    )
