"""The tables and the JSON file."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from bench.load.open_loop import CALLERS
from bench.measure import BARE, BUSY_ELSEWHERE, LIMIT, LIMITS, Results, Sample, Spread
from bench.targets import (
    MET,
    MISSED,
    NAMES,
    NOISE,
    OURS,
    REFERENCE_MS,
    SCALED,
    Verdict,
    p50,
    p99,
    rate,
    slowness,
    verdicts,
)

CPUINFO = Path("/proc/cpuinfo")
PAGE_LOADS = (1, 8)  # result.json has the others
# Figures of how cost grows that result.json alone has.
UNSHOWN = ("p99 ms", "CPU-ms each", "of them gunicorn")


def markdown(every: Sequence[Results]) -> str:
    """Return all tables, as docs/performance.md has them: one for each question."""
    parts = [
        measured(every),
        comparison(every, "Answers per second", answers),
        comparison(every, "Time to an answer: p50 / p99, ms", times),
        comparison(every, "Processor time (CPU-ms) per request / memory (MB)", costs, loads=(8,)),
        nothing(every),
        open_loop(every),
        idle(every),
        growth(every),
        targets([(results.precision, one) for results in every for one in verdicts(results)]),
        skipped(every),
        quiet(every),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def measured(every: Sequence[Results]) -> str:
    """Return on what machine and how was measured, and how the limit runs."""
    first = every[0]
    speed = ""
    if slower := slowness(first):
        speed = (
            f" ONNX Runtime takes {slower * REFERENCE_MS:.1f} CPU-ms for a ResNet-50 here, "
            f"{slower:.2f} times what it took on the machine on "
            "which the targets were set."
        )
    ways = "".join(
        f" {NAMES[model]}, {results.precision}: {its['throughput']}; for one caller {its['lone']}."
        for model, results in product(NAMES, every)
        if (its := results.ways.get(model))
    )
    return (
        f"{first.cpus} cores ({processor()}), Python {platform.python_version()}, "
        f"{first.rounds} rounds, measurements of {first.seconds:g} s "
        f"({first.lasts('yolov5'):g} s with YOLOv5s). Medians over the rounds, in brackets the "
        f"least and the greatest.{speed}"
    ) + (f"\n\nThe limit runs: {ways.strip()}" if ways else "")


def processor() -> str:
    """Return what the processor calls itself, and whether it has the widest vectors."""
    text = CPUINFO.read_text(encoding="utf-8")
    name = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return f"{name[1] if name else 'unknown'}, {'' if ' avx512f ' in text else 'no '}AVX-512"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(spread: Spread | None, digits: int = 0) -> str:
    if spread is None:
        return "–"
    low, high = f"{spread.low:.{digits}f}", f"{spread.high:.{digits}f}"
    return f"{spread.median:.{digits}f} ({low}–{high})"


def comparison(
    every: Sequence[Results],
    title: str,
    cell: Callable[[Results, str, str, int], str],
    loads: Sequence[int] = PAGE_LOADS,
) -> str:
    """Return a table with a row for each model, precision and load, a column for each contender."""
    named = {name for results in every for model in NAMES for name in results.contenders(model)}
    columns = [one for one in (*LIMITS, OURS, BARE) if one in named]
    columns += sorted(named - {*columns})
    rows = [
        [
            NAMES[model],
            results.precision,
            str(callers),
            *(cell(results, model, name, callers) for name in columns),
        ]
        for model, results, callers in product(NAMES, every, loads)
        if any(results.of(model, name, callers) for name in columns)
    ]
    head = ["model", "precision", "callers", *(f"**{c}**" if c == OURS else c for c in columns)]
    return f"### {title}\n\n" + table(head, rows) if rows else ""


def answers(results: Results, model: str, name: str, callers: int) -> str:
    """Return a contender's answers per second; this server's with their share of the limit's."""
    came = results.spread(model, name, callers, rate)
    if came is None:
        return "–"
    if name != OURS:
        return f"{came.median:.1f}"
    share = results.ratio(model, OURS, LIMIT, callers, rate)
    return shown(came, 1) + (f", {share.median:.2f} of the limit" if share else "")


def times(results: Results, model: str, name: str, callers: int) -> str:
    if name in LIMITS and callers > 1:
        return "–"  # it has its own threads, however many callers there are
    half, most = (results.spread(model, name, callers, figure) for figure in (p50, p99))
    return f"{half.median:.0f} / {most.median:.0f}" if half and most else "–"


def costs(results: Results, model: str, name: str, callers: int) -> str:
    """Return the processor time and the memory; of this server also the time by process."""
    spent = results.spread(model, name, callers, lambda one: sum(one.cpu_ms.values()))
    size = results.spread(model, name, callers, lambda one: one.memory_mb)
    if spent is None or size is None:
        return "–"
    both = f"{spent.median:.1f} / {size.median:.0f}"
    if name != OURS:
        return both
    own = f"model process of {model}"
    for process in ("NGINX", "gunicorn", "Triton", own):
        part = results.spread(
            model,
            name,
            callers,
            lambda one, process=process: one.cpu_ms.get(process, 0.0),  # type: ignore[misc]
        )
        both += f", {process.replace(own, 'model')} {part.median if part else 0:.1f}"
    return both


def nothing(every: Sequence[Results]) -> str:
    rows = []
    for callers, rounds in (item for results in every for item in results.nothing.items()):
        ours, *others = zip(*rounds, strict=True)
        shares = [[n / m for n, m in zip(ours, other, strict=True)] for other in others]
        rows.append(
            [
                str(callers),
                *(shown(Spread.of(rates)) for rates in (ours, *others)),
                *(shown(Spread.of(share), 2) for share in shares),
            ]
        )
    head = ["callers", "requests/s", "a Flask route without Triton", BARE]
    head += ["share of the former", "of the latter"]
    return "### A model that does nothing\n\n" + table(head, rows) if rows else ""


def open_loop(every: Sequence[Results]) -> str:
    rows = [
        [
            results.precision,
            f"{seen['share']:.0%}",
            f"{seen['asked']:.1f}",
            f"{seen['answered'] / seen['seconds']:.1f}",
            number(seen.get("p50")),
            number(seen.get("p99")),
            str(seen["refused"]),
            number(seen.get("refused_p99")),
            str(seen["failed"]),
        ]
        for results in every
        for seen in results.open_loop
    ]
    head = [
        "precision",
        "of the capacity",
        "asked/s",
        "answered/s",
        "p50 ms",
        "p99 ms",
        "refused (429)",
        "their p99 ms",
        "failed",
    ]
    title = f"### Open loop, ResNet-50; the capacity is what {CALLERS} callers get\n\n"
    return title + table(head, rows) if rows else ""


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def idle(every: Sequence[Results]) -> str:
    started = [results for results in every if results.start_s]
    names = list(dict.fromkeys(name for results in started for name in results.idle_mb))
    rows = [
        [
            results.precision,
            shown(Spread.of(results.start_s), 1),
            *(number(results.idle_mb.get(name)) for name in names),
        ]
        for results in started
    ]
    head = ["precision", "seconds from ./serve to /ping 200", *names]
    return "### Start, and memory of each idle process (MB)\n\n" + table(head, rows) if rows else ""


def growth(every: Sequence[Results]) -> str:
    """Return how cost grows: a row for each question, with its points, and one for each figure."""
    rows: list[list[str]] = []
    asked = [(results, *item) for results in every for item in results.growth.items()]
    width = max((len(points) for *_, points in asked), default=0)
    for results, question, points in asked:
        what, *figures = points[0]
        cells = {key: [brief(point[key]) for point in points] for key in (what, *figures)}
        blank = [""] * (width - len(points))
        at = [f"**{one}**" for one in cells[what]]
        rows.append([f"**{question}, {results.precision}: {what}**", *at, *blank])
        rows += [[key, *cells[key], *blank] for key in figures if key not in UNSHOWN]
    title = "### How cost grows\n\n"
    return title + table(["", *[""] * width], rows) if rows else ""


def brief(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:.0f}" if isinstance(value, float) else str(value))
    )


def rounded(spread: Spread) -> str:
    return shown(spread, 0 if spread.median >= 100 else 2)


def targets(every: Sequence[tuple[str, Verdict]]) -> str:
    """Return how many targets are met, and those that are missed."""
    rows = [
        [
            one.what,
            precision,
            one.wanted,
            rounded(one.came),
            rounded(one.bare) if one.bare else "",
        ]
        for precision, one in every
        if one.verdict == MISSED
    ]
    found = [one.verdict for _, one in every]
    met = (
        f"{found.count(MET) + found.count(SCALED)} of {len(found)} are met, {found.count(NOISE)} "
        "are missed within the noise"
    )
    head = ["missed", "precision", "target", "came", BARE]
    others = f", {len(rows)} by more:\n\n{table(head, rows)}" if rows else "."
    return f"### Targets\n\n{met}{others}"


def skipped(every: Sequence[Results]) -> str:
    lines = [
        f"{what}, {results.precision}: {reason.splitlines()[0]}"
        for results in every
        for what, reason in results.skipped.items()
    ]
    return f"Not measured: {'; '.join(lines)}." if lines else ""


def quiet(every: Sequence[Results]) -> str:
    shares = [one.elsewhere for results in every for one in results.samples]
    busy = sum(share > BUSY_ELSEWHERE for share in shares)
    if not busy:
        return ""
    return (
        f"In {busy} of {len(shares)} measurements other programs of the machine used more than "
        f"{BUSY_ELSEWHERE:.0%} of the cores, at most {max(shares):.0%}: repeat it on a quiet one."
    )


def write_json(every: Sequence[Results], file: Path) -> None:
    """Write all figures and verdicts, by precision."""
    whole = {
        results.precision: {
            **asdict(results),
            "targets": [asdict(one) for one in verdicts(results)],
        }
        for results in every
    }
    file.write_text(json.dumps(whole, indent=1), encoding="utf-8")


def read_json(file: Path) -> list[Results]:
    """Return what `write_json` has written."""
    every = []
    for whole in json.loads(file.read_text(encoding="utf-8")).values():
        del whole["targets"]
        whole["samples"] = [Sample(**one) for one in whole["samples"]]
        whole["nothing"] = {
            int(callers): [tuple(rates) for rates in rounds]
            for callers, rounds in whole["nothing"].items()
        }
        every.append(Results(**whole))
    return every
