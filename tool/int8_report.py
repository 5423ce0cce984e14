"""What `dispatcher quantize` reports: agreement on samples that were kept apart, speed and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from clients.agreement import Agreement
from tool.samples import LIMITS, Sample

SHOWN = 5


@dataclass(frozen=True)
class Report:
    """What came of quantizing a model.

    Args:
        model: its name in the repository.
        kind: how answers were compared: a family, or "tensors".
        version: which was quantized.
        file: the new one.
        written: whether it is there.
        calibrated_on: how many samples.
        compared_on: how many others.
        agree: how many of those are within the limits.
        median_difference: of those, by the limit; `None` where it is infinite.
        differences: name, whether it passes, what differs most and by how many limits, worst first.
        engine: what both files ran on, with one thread.
        milliseconds_before: the median of a run in single precision.
        milliseconds_after: in int8.
        bytes_before: the size of the version.
        bytes_after: of the new one.
        warnings: why this may say less than it seems to.

    """

    model: str
    kind: str
    version: str
    file: str
    written: bool
    calibrated_on: int
    compared_on: int
    agree: int
    median_difference: float | None
    differences: list[dict[str, Any]]
    engine: str
    milliseconds_before: float
    milliseconds_after: float
    bytes_before: int
    bytes_after: int
    warnings: list[str] = field(default_factory=list)


def finite(number: float) -> float | None:
    """Return a number as JSON can hold it."""
    return round(number, 4) if math.isfinite(number) else None


def listed(samples: Sequence[Sample], found: Sequence[Agreement]) -> list[dict[str, Any]]:
    """Return the comparisons, the worst first."""
    pairs = sorted(
        zip(samples, found, strict=True), key=lambda pair: (pair[1].passes, -pair[1].difference)
    )
    return [
        {
            "sample": sample.name,
            "passes": one.passes,
            "worst": one.worst,
            "difference": finite(one.difference),
        }
        for sample, one in pairs
    ]


def as_text(report: Report) -> str:
    """Return a report as lines for a reader."""
    off, faster = report.median_difference, report.milliseconds_before / report.milliseconds_after
    median = "more than can be measured" if off is None else f"{off:.2f} of that"
    place = report.file if report.written else "not written"
    answers = (
        f"{report.agree} of {report.compared_on} agree ({LIMITS[report.kind]}); the median sample "
        f"differs by {median}"
    )
    speed = (
        f"{report.milliseconds_before:.1f} to {report.milliseconds_after:.1f} ms for a run on one "
        f"thread of {report.engine}: {faster:.2f} times as fast"
    )
    lines = [
        *(f"warning: {one}" for one in report.warnings),
        f"{report.model}, version {report.version}, in int8: {place}",
        f"  samples  calibrated on {report.calibrated_on}, compared on {report.compared_on}",
        f"  answers  {answers}",
        *(
            f"           {one['sample']}: {one['worst']}{'' if one['passes'] else ' (too much)'}"
            for one in report.differences[:SHOWN]
        ),
        f"  speed    {speed}",
        f"  size     {report.bytes_before / 1e6:.1f} to {report.bytes_after / 1e6:.1f} MB",
    ]
    return "".join(f"{line}\n" for line in lines)
