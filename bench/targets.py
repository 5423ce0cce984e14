"""The targets: what is wanted of each figure, and whether it is met.

A target that the median misses and one of the rounds meets is missed within the noise only; that
does not fail the benchmark. Nor does a time of one machine that another, slower one cannot reach:
those targets are seen again in proportion to what ONNX Runtime takes for the same model, or, for
small requests, to how many a Flask route without Triton answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.contenders import SAMPLE
from bench.measure import BARE, LIMIT, LIMITS, Results, Sample, Spread
from bench.work import PROJECT

OURS = "this server"
NO_RIVALS = (OURS, BARE, *LIMITS)
MET, NOISE, MISSED = "met", "within the noise", "MISSED"
SCALED = "met for a machine of this speed"

REFERENCE_MS = 31.7  # CPU-ms of a ResNet-50 in ONNX Runtime on the machine of the targets

# Requests/s of a Flask route without Triton on that machine, by callers.
REFERENCE_ROUTE = {1: 3130, 16: 6867}

THROUGHPUT_SHARES = {
    "resnet": ("ResNet-50", 0.95, 0.97),
    "yolov5": ("YOLOv5s", 0.95, 0.97),
    "bert_base": ("BERT-base shape", 0.80, 0.90),
}
# Of the AWS article's sample, how many times its throughput.
SAMPLE_TIMES = {"resnet": 1.25, "yolov5": 1.6, "bert_base": 7.0}
MOST_OUTSIDE_MS = 6.2
MOST_LONE = 1.15
MOST_TAIL = 1.3
START_S = 8.0
WEB_MB = 150
PROCESS_MB = 120
REFUSED_MS = 50
RESOLUTION = 0.02  # one answer more or less, of the fifty that a lone caller gets in some seconds
OVERLOAD_KEEPS = 0.97  # of the capacity: what a measurement of half a minute can tell


@dataclass(frozen=True)
class Verdict:
    """One target; `bare` is the same figure of a bare route on the same Triton."""

    what: str
    wanted: str
    stretch: str
    came: Spread
    verdict: str
    stretched: bool
    rival: bool = False
    bare: Spread | None = None


def slowness(results: Results) -> float:
    """Return how many times the reference's processor time ONNX Runtime takes; 0 if unknown."""
    times = results.onnxruntime_ms.get("resnet", {}).values()
    return Spread.of(list(times)).median / REFERENCE_MS if times else 0.0


def scaled(one: Verdict | None, *, met: bool) -> Verdict | None:
    """Return the verdict on an absolute target, milder where this machine is slower."""
    return replace(one, verdict=SCALED) if one and one.verdict == MISSED and met else one


def at_least(
    what: str, came: Spread | None, target: float, stretch: float | None = None
) -> Verdict | None:
    if came is None:
        return None
    verdict = MET if came.median >= target else NOISE if came.high >= target else MISSED
    stretched = stretch is not None and came.median >= stretch
    return Verdict(
        what, f"≥ {target:g}", f"≥ {stretch:g}" if stretch else "", came, verdict, stretched
    )


def at_most(
    what: str, came: Spread | None, target: float, stretch: float | None = None
) -> Verdict | None:
    if came is None:
        return None
    verdict = MET if came.median <= target else NOISE if came.low <= target else MISSED
    stretched = stretch is not None and came.median <= stretch
    return Verdict(
        what, f"≤ {target:g}", f"≤ {stretch:g}" if stretch else "", came, verdict, stretched
    )


def verdicts(results: Results) -> list[Verdict]:
    """Return every target whose figures were measured."""
    found = (
        *shares(results),
        *latencies(results),
        *rivals(results),
        *costs(results),
        *overload(results),
        *idle(results),
    )
    return [one for one in found if one]


def rate(one: Sample) -> float:
    return one.per_second


def p50(one: Sample) -> float:
    return one.p50


def p99(one: Sample) -> float:
    return one.p99


def tail(one: Sample) -> float:
    return one.p99 / one.p50


def beside(one: Verdict | None, bare: Spread | None) -> Verdict | None:
    """Return a verdict with what the bare route came to."""
    return replace(one, bare=bare) if one else None


def shares(results: Results) -> Iterator[Verdict | None]:
    for model, (name, target, stretch) in THROUGHPUT_SHARES.items():
        for callers in (8, 16):
            ours, bare = (results.ratio(model, s, LIMIT, callers, rate) for s in (OURS, BARE))
            what = f"{name}, {callers} callers: share of the limit"
            yield beside(at_least(what, ours, target, stretch), bare)


def latencies(results: Results) -> Iterator[Verdict | None]:
    for model, (name, _, _) in THROUGHPUT_SHARES.items():
        ours, bare = (results.ratio(model, s, LIMIT, 1, p50) for s in (OURS, BARE))
        what = f"{name}, a lone caller: p50 of the limit's"
        yield beside(at_most(what, ours, MOST_LONE, 1.10), bare)
        ours, bare = (results.spread(model, s, 8, tail) for s in (OURS, BARE))
        yield beside(at_most(f"{name}, 8 callers: p99 / p50", ours, MOST_TAIL, 1.2), bare)


def rivals(results: Results) -> Iterator[Verdict | None]:
    figures: tuple[tuple[str, Callable[[Sample], float], bool], ...] = (
        ("throughput", rate, True),
        ("p50", p50, False),
        ("p99", p99, False),
    )
    for model, (name, _, _) in THROUGHPUT_SHARES.items():
        for rival in results.contenders(model):
            if rival in NO_RIVALS:
                continue
            for callers in (1, 4, 8, 16):
                for figure, read, more in figures:
                    compare = at_least if more else at_most
                    came = results.ratio(model, OURS, rival, callers, read)
                    if came is None:
                        continue
                    times = SAMPLE_TIMES[model] if rival == SAMPLE and read is rate else 1
                    what = f"{name}, {callers} callers: {figure} as a share of {rival}'s"
                    if one := compare(what, came, times):
                        alike = one.verdict == MISSED and abs(came.median - times) <= RESOLUTION
                        verdict = NOISE if alike else one.verdict
                        yield replace(one, rival=True, verdict=verdict)


def costs(results: Results) -> Iterator[Verdict | None]:
    inside = results.onnxruntime_ms.get("resnet", {})
    slower = slowness(results)
    ours = results.of("resnet", OURS, 8)
    outside = [sum(ours[n].cpu_ms.values()) - inside[n] for n in ours if n in inside]
    if outside:
        came = Spread.of(outside)
        one = at_most("ResNet-50: CPU-ms outside ONNX Runtime", came, MOST_OUTSIDE_MS, 5.6)
        yield scaled(one, met=came.low <= MOST_OUTSIDE_MS * slower)
    for callers, target, stretch in ((1, 1400, None), (16, 2600, 3000)):
        if rounds := results.nothing.get(callers):
            came, _, bare = map(Spread.of, zip(*rounds, strict=True))
            share = Spread.of([ours / route for ours, route, _ in rounds])
            one = at_least(f"nothing-model, {callers} callers: requests/s", came, target, stretch)
            yield beside(scaled(one, met=share.high >= target / REFERENCE_ROUTE[callers]), bare)


def overload(results: Results) -> Iterator[Verdict | None]:
    for seen in results.open_loop:
        if seen["share"] <= 1:
            continue
        # Before and after it: the machine may have been another one at the beginning.
        kept = [seen["answered"] / seen["seconds"] / one for one in results.capacity[-2:]]
        yield at_least(
            f"open loop at {seen['share']:.0%}: answered/s as a share of the capacity",
            Spread.of(kept),
            OVERLOAD_KEEPS,
        )
        if seen["refused"]:
            late = Spread.of([seen["refused_p99"]])
            yield at_most("the same: p99 ms of what is refused", late, REFUSED_MS)


def idle(results: Results) -> Iterator[Verdict | None]:
    if results.start_s:
        yield at_most("seconds from ./serve to /ping 200", Spread.of(results.start_s), START_S, 5)
    for name, size in results.idle_mb.items():
        came = Spread.of([size])
        if name == "gunicorn":
            yield at_most("web worker(s): MB (PSS)", came, WEB_MB)
        elif model := name.removeprefix("model process of ").strip("/"):
            weights = PROJECT / "model_repository" / model / "1" / "model.onnx"
            if weights.is_file():
                most = round(weights.stat().st_size / 1e6 + PROCESS_MB)
                yield at_most(f"an idle model process of {model}: MB (PSS)", came, most)
