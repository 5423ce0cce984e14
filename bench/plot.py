"""The plot: throughput as a share of the limit, a bar for each contender at each load."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from bench.measure import BARE, LIMIT, LIMITS, Results, Spread
from bench.targets import NAMES, OURS, rate

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
