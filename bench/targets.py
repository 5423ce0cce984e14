"""The targets: what is wanted of each figure, and whether it is met.

A target that the median misses and one of the rounds meets is missed within the noise only; that
does not fail the benchmark. Nor does a time of one machine that another, slower one cannot reach:
such a target is seen again in proportion to what ONNX Runtime takes for the same model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from bench.measure import BARE, LIMIT, Results, Sample, Spread
from bench.servers.rival_servers import LITSERVE, TRITON
from bench.servers.sessions import AUTO, EXACT

OURS = "this server"
MET, NOISE, MISSED = "met", "within the noise", "MISSED"
SCALED = "met for a machine of this speed"

REFERENCE_MS = 31.7  # CPU-ms of a ResNet-50 in ONNX Runtime on the machine of the targets

NAMES = {"resnet": "ResNet-50", "yolov5": "YOLOv5s", "bert_base": "BERT-base shape"}
# Of the limit's throughput, with 8 callers.
SHARES = {
    EXACT: {"resnet": 0.88, "yolov5": 0.92, "bert_base": 0.64},
    AUTO: {"resnet": 0.80, "yolov5": 0.88, "bert_base": 0.60},
}
# They run the same engine; BentoML and MLServer have ONNX Runtime at every precision.
SAME_ENGINE = (LITSERVE, TRITON)
MOST_OUTSIDE_MS = 6.2
MOST_TAIL = 1.3
START_S = 5.0
WEB_MB = 150
# Of an idle model process: 1.2 times what it was with ONNX Runtime alone.
PROCESS_MB = {"resnet": 178, "yolov5": 138, "bert_base": 163}
REFUSED_MS = 50
RESOLUTION = 0.02  # one answer more or less, of the fifty that a lone caller gets in some seconds
OVERLOAD_KEEPS = 0.97  # of the capacity: what a measurement of half a minute can tell


@dataclass(frozen=True)
class Verdict:
    """One target; `bare` is the same figure of a bare route on the same Triton."""

    what: str
    wanted: str
    came: Spread
    verdict: str
    rival: bool = False
    bare: Spread | None = None


def slowness(results: Results) -> float:
    """Return the ratio of processor times of ONNX Runtime and the reference."""
    return results.reference_ms / REFERENCE_MS


def scaled(one: Verdict | None, *, met: bool) -> Verdict | None:
    """Return the verdict on an absolute target, milder where this machine is slower."""
    return replace(one, verdict=SCALED) if one and one.verdict == MISSED and met else one


def at_least(what: str, came: Spread | None, target: float) -> Verdict | None:
    if came is None:
        return None
    verdict = MET if came.median >= target else NOISE if came.high >= target else MISSED
    return Verdict(what, f"≥ {target:g}", came, verdict)


def at_most(what: str, came: Spread | None, target: float) -> Verdict | None:
    if came is None:
        return None
    verdict = MET if came.median <= target else NOISE if came.low <= target else MISSED
    return Verdict(what, f"≤ {target:g}", came, verdict)


def verdicts(results: Results) -> list[Verdict]:
    """Return every target whose figures were measured."""
    found = (
        *shares(results),
        *tails(results),
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
    for model, target in SHARES[results.precision].items():
        ours, bare = (results.ratio(model, s, LIMIT, 8, rate) for s in (OURS, BARE))
        what = f"{NAMES[model]}, 8 callers: share of the limit"
        yield beside(at_least(what, ours, target), bare)


def tails(results: Results) -> Iterator[Verdict | None]:
    for model, name in NAMES.items():
        ours, bare = (results.spread(model, s, 8, tail) for s in (OURS, BARE))
        yield beside(at_most(f"{name}, 8 callers: p99 / p50", ours, MOST_TAIL), bare)


def rivals(results: Results) -> Iterator[Verdict | None]:
    for (model, name), rival, callers in product(NAMES.items(), SAME_ENGINE, (8, 16)):
        what = f"{name}, {callers} callers: {{}} as a share of {rival}'s"
        speed, late = (results.ratio(model, OURS, rival, callers, read) for read in (rate, p99))
        for one in (
            at_least(what.format("throughput"), speed, 1),
            at_most(what.format("p99"), late, 1),
        ):
            if one:
                alike = one.verdict == MISSED and abs(one.came.median - 1) <= RESOLUTION
                yield replace(one, rival=True, verdict=NOISE if alike else one.verdict)


def costs(results: Results) -> Iterator[Verdict | None]:
    ours, limit = (results.of("resnet", whose, 8) for whose in (OURS, LIMIT))
    outside = [sum(ours[n].cpu_ms.values()) - limit[n].cpu_ms["engine"] for n in ours if n in limit]
    if outside:
        came = Spread.of(outside)
        one = at_most("ResNet-50: CPU-ms outside the engine", came, MOST_OUTSIDE_MS)
        yield scaled(one, met=came.low <= MOST_OUTSIDE_MS * slowness(results))


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
        yield at_most("seconds from ./serve to /ping 200", Spread.of(results.start_s), START_S)
    for name, size in results.idle_mb.items():
        came = Spread.of([size])
        if name == "gunicorn":
            yield at_most("web worker(s): MB (PSS)", came, WEB_MB)
        elif most := PROCESS_MB.get(model := name.removeprefix("model process of ")):
            yield at_most(f"an idle model process of {model}: MB (PSS)", came, most)
