"""The report of `dispatcher quantize`: agreement, speed and size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clients.base import Client, Parameter
from clients.plugins.family import Family
from clients.tensors.agreement import (
    LEAST_COSINE,
    LEAST_IOU,
    PROBABILITY,
    SPREAD,
    Agreement,
    compare,
    tensors,
    worst_of,
)
from tool.samples import Sample

Answer = tuple[Any, Sequence[Mapping[str, Any]]]  # a result, and the outputs of the model's runs

SHOWN = 5
RANKED = ("classification", "text-classification")
LIMITS = {
    **dict.fromkeys((*RANKED, "fill-mask"), f"the same first, probabilities within {PROBABILITY}"),
    "detection": f"the same objects, IoU at least {LEAST_IOU}, scores within {PROBABILITY}",
    "embedding": f"cosine at least {LEAST_COSINE}",
    "tensors": f"within {SPREAD} of an output's range",
}
COMPARED = frozenset(LIMITS)


@dataclass(frozen=True)
class Report:
    """The result of quantizing a model.

    Args:
        kind: how answers were compared: a family, or "tensors".
        without_object: how many of the compared samples have no object, before and after; they do
            not count as agreeing.
        median_difference: of the others, by the limit; `None` where it is infinite.
        differences: name, whether it passes, what differs most and by how many limits, worst first.
        milliseconds_before: the median of a run in single precision.
        warnings: why this may say less than it seems to.

    """

    model: str
    kind: str
    version: str
    file: str
    written: bool
    calibrated_on: int
    compared_on: int
    without_object: int
    agree: int
    median_difference: float | None
    differences: list[dict[str, Any]]
    engine: str
    milliseconds_before: float
    milliseconds_after: float
    bytes_before: int
    bytes_after: int
    warnings: list[str] = field(default_factory=list)


def kind(client: Client) -> str:
    """Return how a client's answers are compared: its family, or "tensors"."""
    family = client.keys.family if isinstance(client, Family) else ""
    return family if family in COMPARED else "tensors"


def parameters(client: Client) -> dict[str, Any]:
    """Return parameters of the comparison: all classes of a classifier."""
    top_k = client.parameters.get("top_k")
    if kind(client) in RANKED and isinstance(top_k, Parameter) and math.isfinite(top_k.high):
        return {"top_k": int(top_k.high)}
    return {}


def difference(client: Client, expected: Answer, got: Answer) -> Agreement:
    """Compare the answers to one sample: results, or the model's outputs."""
    if kind(client) == "tensors":
        if len(expected[1]) != len(got[1]):
            words = f"the client asks {len(got[1])} times, not {len(expected[1])} times"
            return Agreement(passes=False, worst=words, difference=math.inf)
        return worst_of([tensors(*pair) for pair in zip(expected[1], got[1], strict=True)])
    confidence = client.read_parameters({}).get("confidence", 0.0)
    return compare(kind(client), expected[0], got[0], confidence=confidence)


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
    place = report.file if report.written else "not written"
    shown = report.compared_on - report.without_object
    held = f"compared on {report.compared_on}"
    if report.without_object:
        held += f", {report.without_object} of them without an object"
    speed = (
        f"{report.milliseconds_before:.1f} to {report.milliseconds_after:.1f} ms for a run on one "
        f"thread of {report.engine}: {faster:.2f} times as fast"
    )
    lines = [
        *(f"warning: {one}" for one in report.warnings),
        f"{report.model}, version {report.version}, in int8: {place}",
        f"  samples  calibrated on {report.calibrated_on}, {held}",
        f"  answers  {report.agree} of {shown} agree: {LIMITS[report.kind]}",
        f"  median   {'far beyond the' if off is None else f'{off:.2f} of these'} limits",
        *(
            f"           {one['sample']}: {one['worst']}{'' if one['passes'] else ' (too much)'}"
            for one in report.differences[:SHOWN]
        ),
        f"  speed    {speed}",
        f"  size     {report.bytes_before / 1e6:.1f} to {report.bytes_after / 1e6:.1f} MB",
    ]
    return "".join(f"{line}\n" for line in lines)
