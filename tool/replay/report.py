"""Counts what was replayed by model, and reports it as text, as JSON and as JUnit's XML."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from tool.replay.comparing import ERROR, ReplayedRequest

VERDICTS = ("same", "close", "different", ERROR)
WORST = 10  # requests that are kept to be looked at
SHOWN = 5  # of these in the text
BEYOND = {  # with what was found, its limit and the first error
    "different": "{:.1%} of its answers differ, --max-different is {:g}",
    "errors": "{:.1%} of its requests failed, --max-errors is {:g}; the first: {}",
    "slower": "its p99 is {:.3g} times that before, --max-slower is {:g}",
}
MOST_TIMES = 100_000  # of a model, the last ones


@dataclass
class ReplayTally:
    """The requests of a model."""

    counts: Counter[str] = field(default_factory=Counter)  # by verdict
    error: str = ""  # the first
    # Milliseconds before and now
    times: deque[tuple[float, float]] = field(default_factory=partial(deque, maxlen=MOST_TIMES))

    def add(self, one: ReplayedRequest) -> None:
        self.counts[one.verdict] += 1
        if one.verdict == ERROR:
            self.error = self.error or one.words
        elif one.line.ms and one.answer.ms:
            self.times.append((one.line.ms, one.answer.ms))

    def describe(self, limits: Mapping[str, float]) -> dict[str, Any]:
        """Return counts, quantiles before and now, and in words each limit that is passed."""
        total, times = self.counts.total(), self.times or [(0.0, 0.0)]
        p50, p99 = np.quantile(np.array(times), (0.5, 0.99), axis=0).round(2).tolist()
        found = {
            "different": self.counts["different"] / total,
            "errors": self.counts[ERROR] / total,
            "slower": p99[1] / (p99[0] or 1.0),
        }
        return {
            "requests": total,
            **{verdict: self.counts[verdict] for verdict in VERDICTS},
            "p50_ms": p50,
            "p99_ms": p99,
            "passed": {
                name: BEYOND[name].format(one, limits[name], self.error)
                for name, one in found.items()
                if one > limits[name]
            },
        }


@dataclass
class ReplayReport:
    """All that was replayed: a tally of each model, and the worst differences."""

    limits: Mapping[str, float]  # of each model: shares of its requests, and a factor of its p99
    skipped: Counter[str]  # what was not replayed, by reason
    tallies: dict[str, ReplayTally] = field(default_factory=dict)
    total: int = 0  # requests
    # The worst differences, the worst first, and of equals the first
    worst: list[ReplayedRequest] = field(default_factory=list)

    def add(self, one: ReplayedRequest) -> None:
        """Count a request; keep it if it is among the worst."""
        self.total += 1
        self.tallies.setdefault(one.line.model, ReplayTally()).add(one)
        if one.verdict in ("close", "different"):
            self.worst.append(one)
            self.worst.sort(key=lambda one: (one.verdict == "close", -one.difference))
            del self.worst[WORST:]

    def describe(self) -> dict[str, Any]:
        """Return the report for a program."""
        return {
            "models": {name: one.describe(self.limits) for name, one in self.tallies.items()},
            "not_replayed": dict(self.skipped),
            "worst": [
                {
                    "model": one.line.model,
                    "request_id": one.line.request_id,
                    "verdict": one.verdict,
                    "words": one.words,
                }
                for one in self.worst
            ],
        }


def as_text(report: Mapping[str, Any]) -> str:
    rows = [["model", "requests", *VERDICTS, "p50 ms", "p99 ms"]]
    for model, found in report["models"].items():
        counts = (str(found[name]) for name in ("requests", *VERDICTS))
        pairs = (found[name] for name in ("p50_ms", "p99_ms"))
        times = (f"{before:.1f} → {now:.1f}" if now else "-" for before, now in pairs)
        rows.append([model, *counts, *times])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    lines += [f"{count} requests {why}" for why, count in report["not_replayed"].items()]
    lines += [
        f"{one['verdict']}: {one['model']}, request {one['request_id']}: {one['words']}"
        for one in report["worst"][:SHOWN]
    ]
    for model, found in report["models"].items():
        lines += [f"FAILED {model}: {words}" for words in found["passed"].values()]
    return "".join(f"{line}\n" for line in lines)


def as_junit(report: Mapping[str, Any]) -> bytes:
    """Return a test suite for each model, with a test case for each limit."""
    root = ET.Element("testsuites", name="dispatcher replay")
    for model, found in report["models"].items():
        suite = ET.SubElement(root, "testsuite", name=model)
        for name in BEYOND:
            case = ET.SubElement(suite, "testcase", classname=model, name=name)
            if name in found["passed"]:
                ET.SubElement(case, "failure", message=found["passed"][name])
    return bytes(ET.tostring(root, "utf-8", xml_declaration=True))
