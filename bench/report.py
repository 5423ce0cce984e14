"""The tables, the JSON file and the plot."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from bench.load.open_loop import CALLERS
from bench.measure import BARE, BUSY_ELSEWHERE, LIMIT, LIMITS, Results, Spread
from bench.targets import (
    MET,
    NAMES,
    NO_RIVALS,
    OURS,
    REFERENCE_MS,
    SAME_ENGINE,
    Verdict,
    p50,
    p99,
    rate,
    slowness,
    verdicts,
)

CPUINFO = Path("/proc/cpuinfo")


def markdown(every: Sequence[Results]) -> str:
    """Return all tables, as docs/performance.md has them.

    Args:
        every: what was measured, at one precision each.

    """
    parts = [
        measured(every[0]),
        *(
            closed_loop(results, model)
            for model in NAMES
            for results in every
            if results.contenders(model)
        ),
        cpu(every),
        *(nothing(results) for results in every),
        *(open_loop(results) for results in every),
        *(idle(results) for results in every),
        *(growth(results, question) for results in every for question in results.growth),
        targets([(results.precision, one) for results in every for one in verdicts(results)]),
        skipped(every),
        quiet(every),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def measured(results: Results) -> str:
    speed = ""
    if slower := slowness(results):
        speed = (
            f" ONNX Runtime takes {slower * REFERENCE_MS:.1f} CPU-ms for a ResNet-50 here, "
            f"{slower:.2f} times what it took where the targets were set."
        )
    return (
        f"{results.cpus} cores ({processor()}), Python {platform.python_version()}, "
        f"{results.rounds} rounds, measurements of {results.seconds:g} s "
        f"({results.lasts('yolov5'):g} s with YOLOv5s). "
        f"Median (least–greatest of the rounds).{speed}"
    )


def processor() -> str:
    """Return what the processor calls itself, and whether it has the widest vectors."""
    text = CPUINFO.read_text()
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


def best_rival(results: Results, model: str, callers: int) -> str | None:
    """Return who answers most a second, of the other servers."""
    rates = {
        name: spread.median
        for name in results.contenders(model)
        if name not in NO_RIVALS
        and (spread := results.spread(model, name, callers, rate)) is not None
    }
    return max(rates, key=lambda name: rates[name], default=None)


def closed_loop(results: Results, model: str) -> str:
    rows = []
    loads = sorted({one.callers for one in results.samples if one.model == model})
    for callers in loads:
        rival = best_rival(results, model, callers)
        for name in results.contenders(model):
            cell = (model, name, callers)
            if results.spread(*cell, rate) is None:
                continue
            times = ["–", "–"]
            if (
                name not in LIMITS or callers == 1
            ):  # else it has its own threads, whatever the callers
                times = [shown(results.spread(*cell, figure)) for figure in (p50, p99)]
            rows.append(
                [
                    str(callers),
                    f"**{name}**" if name == OURS else name,
                    shown(results.spread(*cell, rate), 1),
                    *times,
                    shown(results.spread(*cell, lambda one: sum(one.cpu_ms.values())), 1),
                    shown(results.spread(*cell, lambda one: one.memory_mb)),
                    shown(results.ratio(model, name, LIMIT, callers, rate), 2),
                    shown(results.ratio(model, name, rival, callers, rate), 2) if rival else "–",
                ]
            )
    ways = results.ways[model]
    fewer = "".join(f"; with {use} {way}" for use, way in ways.items() if use.endswith("in hand"))
    return (
        f"### {NAMES[model]}, {results.precision}\n\n"
        f"The limit runs {ways['throughput']}; for one caller {ways['lone']}{fewer}.\n\n"
    ) + table(
        [
            "callers",
            "",
            "items/s",
            "p50 ms",
            "p99 ms",
            "CPU-ms each",
            "MB",
            "of the limit",
            "of the best rival",
        ],
        rows,
    )


def cpu(every: Sequence[Results]) -> str:
    """Return where this server's processor time goes."""
    rows = []
    for (model, name), results in product(NAMES.items(), every):
        names = {n for one in results.samples if one.contender == OURS for n in one.cpu_ms}
        own = f"model process of {model}"
        for callers in (1, 8):
            spreads = {
                process: results.spread(
                    model,
                    OURS,
                    callers,
                    lambda one, process=process: one.cpu_ms.get(process, 0.0),  # type: ignore[misc]
                )
                for process in names
            }
            if not any(spreads.values()):
                continue
            known = ("NGINX", "gunicorn", "Triton", own)
            other = sum(s.median for p, s in spreads.items() if s and p not in known)
            figures = [shown(spreads.get(p), 1) for p in known]
            rows.append([name, results.precision, str(callers), *figures, f"{other:.1f}"])
    if not rows:
        return ""
    head = [
        "",
        "precision",
        "callers",
        "NGINX",
        "gunicorn",
        "Triton",
        "the model's processes",
        "all others",
    ]
    return "### CPU-ms of a request in this server, by process\n\n" + table(head, rows)


def nothing(results: Results) -> str:
    if not results.nothing:
        return ""
    rows = []
    for callers, rounds in results.nothing.items():
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
    return "### A model that does nothing\n\n" + table(head, rows)


def open_loop(results: Results) -> str:
    if not results.open_loop:
        return ""
    rows = [
        [
            f"{seen['share']:.0%}",
            f"{seen['asked']:.1f}",
            f"{seen['answered'] / seen['seconds']:.1f}",
            number(seen.get("p50")),
            number(seen.get("p99")),
            str(seen["refused"]),
            number(seen.get("refused_p99")),
            str(seen["failed"]),
        ]
        for seen in results.open_loop
    ]
    head = [
        "of the capacity",
        "asked/s",
        "answered/s",
        "p50 ms",
        "p99 ms",
        "refused (429)",
        "their p99 ms",
        "failed",
    ]
    capacity = (
        f"The capacity is what a closed loop of {CALLERS} callers by the same program has: "
        f"{shown(Spread.of(results.capacity), 1)}/s.\n\n"
    )
    title = f"### Open loop, ResNet-50, this server, {results.precision}\n\n"
    return title + capacity + table(head, rows)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def idle(results: Results) -> str:
    if not results.start_s:
        return ""
    rows = [[name, f"{size:.0f}"] for name, size in results.idle_mb.items()]
    return (
        f"### Start and memory, {results.precision}\n\n"
        "`./serve` to the first 200 of `/ping`, weights present: "
        f"{shown(Spread.of(results.start_s), 1)} s. Idle, after the start, MB (PSS):\n\n"
        + table(["process", "MB"], rows)
    )


def growth(results: Results, question: str) -> str:
    rows = results.growth[question]
    head = list(rows[0])
    return f"### {question}, {results.precision}\n\n" + table(
        head, [[brief(row[key]) for key in head] for row in rows]
    )


def brief(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:.0f}" if isinstance(value, float) else str(value))
    )


def rounded(spread: Spread) -> str:
    return shown(spread, 0 if spread.median >= 100 else 2)


def targets(every: Sequence[tuple[str, Verdict]]) -> str:
    """Return the targets by precision; of those against rivals only the missed."""
    compared = [one for _, one in every if one.rival]
    won = sum(one.verdict == MET for one in compared)
    rows = [
        [
            one.what,
            precision,
            one.wanted,
            rounded(one.came),
            one.verdict,
            rounded(one.bare) if one.bare else "",
        ]
        for precision, one in every
        if not one.rival or one.verdict != MET
    ]
    ahead = (
        f"Ahead of {' and '.join(SAME_ENGINE)} in {won} of {len(compared)} comparisons of "
        "throughput and p99; the others are in the table.\n\n"
    ) * bool(compared)
    head = ["what", "precision", "target", "came", "", BARE]
    return "### Targets\n\n" + ahead + table(head, rows)


def skipped(every: Sequence[Results]) -> str:
    lines = [
        f"- {what}, {results.precision}: {reason.splitlines()[0]}"
        for results in every
        for what, reason in results.skipped.items()
    ]
    return "### Skipped\n\n" + "\n".join(lines) if lines else ""


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
    file.write_text(json.dumps(whole, indent=1))


# The plot: throughput as a share of the limit, a bar for each contender at each load.

ROW, LEFT, WIDE, TOP = 17, 150, 420, 46
COLOURS = {OURS: "#76b900", BARE: "#c8dca0", "rival": "#9aa5b1"}


def svg(every: Sequence[Results]) -> str:
    """Return the plot."""
    drawn: list[str] = []
    y = TOP
    for (model, name), results in product(NAMES.items(), every):
        for callers in sorted({s.callers for s in results.samples if s.model == model}):
            many = f"{callers} caller{'s' * (callers > 1)}"
            drawn.append(text(8, y + 12, f"{name}, {results.precision}, {many}", bold=True))
            y += ROW + 2
            for contender in results.contenders(model):
                share = results.ratio(model, contender, LIMIT, callers, rate)
                if contender in LIMITS or share is None:
                    continue
                drawn += bar(y, contender, share)
                y += ROW
            y += 6
    marks = [
        f'<line x1="{x(tick)}" y1="{TOP - 8}" x2="{x(tick)}" y2="{y}" '
        f'stroke="{"#c0392b" if tick == 1 else "#dddddd"}"/>'
        + text(x(tick) - 9, TOP - 12, f"{tick:g}")
        for tick in (0.25, 0.5, 0.75, 1)
    ]
    size = f'width="{LEFT + WIDE + 90}" height="{y + 8}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(8, 16, "items/s as a share of the in-process limit"),
        *marks,
        *drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def x(share: float) -> float:
    return round(LEFT + min(share, MOST_SHARE) / MOST_SHARE * WIDE, 1)


MOST_SHARE = 1.15


def bar(y: int, contender: str, share: Spread) -> list[str]:
    colour = COLOURS.get(contender, COLOURS["rival"])
    middle, long, high = y + ROW / 2 - 1, round(x(share.median) - LEFT, 1), ROW - 4
    ends = f'x1="{x(share.low)}" y1="{middle}" x2="{x(share.high)}" y2="{middle}"'
    return [
        text(20, y + 12, contender),
        f'<rect x="{LEFT}" y="{y + 1}" width="{long}" height="{high}" fill="{colour}"/>',
        f'<line {ends} stroke="#333333" stroke-width="2"/>',
        text(LEFT + WIDE + 30, y + 12, f"{share.median:.2f}"),
    ]


def text(left: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{left}" y="{y}"{weight}>{words}</text>'
