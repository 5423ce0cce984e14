"""Exemplars: for each bucket of a histogram a trace of a request that was counted in it.

prometheus_client keeps none where several processes count. So each web worker keeps its own, and
the page of a scrape has those of the worker that answers it.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

OPENMETRICS = CONTENT_TYPE_LATEST
END = b"# EOF\n"
BUCKET = "_bucket"

# Triton's counters, which OpenMetrics would have end in `_total`.
NO_TOTAL = re.compile(rb"^(# TYPE \S+(?<!_total)) counter$", re.MULTILINE)


class Exemplars:
    """The last trace in each bucket.

    Args:
        histograms: their names, with the upper bounds of their buckets. The labels of each are
            model and status.

    """

    def __init__(self, histograms: Mapping[str, Sequence[float]]) -> None:
        self._histograms = histograms
        self._latest: dict[tuple[str, str, str, str], Exemplar] = {}

    def note(self, labels: tuple[str, str], trace_id: str, values: Sequence[float]) -> None:
        """Note the trace of a request.

        Args:
            labels: its model and status.
            trace_id: of its trace.
            values: what was observed in each of the histograms, in their order.

        """
        now = time.time()
        for (name, bounds), value in zip(self._histograms.items(), values, strict=True):
            bound = next(iter(bounds[bisect_left(bounds, value) :]), math.inf)
            key = (name, *labels, floatToGoString(bound))  # type: ignore[no-untyped-call]
            self._latest[key] = Exemplar({"trace_id": trace_id}, value, now)

    def page(self, counted: Collector | CollectorRegistry) -> bytes:
        """Return what a collector has in OpenMetrics, with exemplars, without its last line."""
        return as_openmetrics(WithExemplars(counted, self._latest))


class WithExemplars(Collector):
    """Adds exemplars to the buckets of another collector."""

    def __init__(
        self,
        counted: Collector | CollectorRegistry,
        exemplars: Mapping[tuple[str, str, str, str], Exemplar],
    ) -> None:
        self._counted = counted
        self._exemplars = exemplars

    def collect(self) -> Iterable[Metric]:
        """Yield the families of metrics."""
        for family in self._counted.collect():
            if family.type == "histogram":
                family.samples = [
                    sample._replace(
                        exemplar=self._exemplars.get(
                            (
                                family.name,
                                sample.labels.get("model", ""),
                                sample.labels.get("status", ""),
                                sample.labels.get("le", ""),
                            )
                        )
                    )
                    if sample.name.endswith(BUCKET)
                    else sample
                    for sample in family.samples
                ]
            yield family


def as_openmetrics(counted: Collector | CollectorRegistry) -> bytes:
    """Return what a collector has in OpenMetrics, without its last line."""
    page: bytes = generate_latest(counted)  # type: ignore[no-untyped-call]
    return page.removesuffix(END)


def triton_as_openmetrics(page: bytes) -> bytes:
    """Return Triton's page of text in OpenMetrics, with the same names."""
    return NO_TOTAL.sub(rb"\1 unknown", page)
