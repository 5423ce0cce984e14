"""Counts requests, over all web workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from dispatcher.observability.multiprocess import (
    DIR_VARIABLE,
    merge_dead_workers,
    read_consistent,
)
from dispatcher.observability.record import RequestRecord

log = logging.getLogger(__name__)

# Callers choose the model's name: only this many existing models have a label of their own.
MAX_MODELS = 200
OTHER = "other"
SEVERAL = "several"

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


def metrics_folder(environment: Mapping[str, str]) -> Path | None:
    """Merge the files of dead workers; return the folder with this worker's."""
    if not (folder := environment.get(DIR_VARIABLE)):
        return None
    try:
        merge_dead_workers(Path(folder))
    except OSError as error:
        log.warning("the counts of dead web workers cannot be merged: %s", error)
    return Path(folder)


class Metrics:
    """The counters and histograms of requests.

    Args:
        models: the names that exist from the beginning.
        folder: where several processes count, each in its own files; prometheus_client must have
            been imported with PROMETHEUS_MULTIPROC_DIR set to it. `None` for a single process.

    """

    def __init__(self, models: Iterable[str] = (), folder: Path | None = None) -> None:
        self.folder = folder
        self._models = set(models)
        self._registry = CollectorRegistry()
        registry = None if folder else self._registry
        self._requests = Counter(
            "dispatcher_requests",
            "Requests that a web worker has answered.",
            ("method", "route", "model", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "dispatcher_request_seconds",
            "Seconds from when NGINX had a request that asks a model until its answer was sent.",
            ("model", "status"),
            buckets=REQUEST_S,
            registry=registry,
        )
        self._queue = Histogram(
            "dispatcher_queue_seconds",
            "Seconds of those that a request waited in the queue.",
            ("model", "status"),
            buckets=QUEUE_S,
            registry=registry,
        )
        self._items = Counter(
            "dispatcher_items",
            "Results in responses that hold several: of lists, several models and JSON lines.",
            ("model", "status"),
            registry=registry,
        )
        self.in_flight = Gauge(
            "dispatcher_requests_in_flight",
            "Requests that the web workers are answering, including this one.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        # Cached: the library looks labels up for each call.
        self._request = cache(self._requests.labels)
        self._times = cache(
            lambda model, status: (
                self._seconds.labels(model, status),
                self._queue.labels(model, status),
            )
        )

    def request(self, record: RequestRecord) -> None:
        """Count an answered request."""
        model = self._label(record)
        method = record.method if record.route else ""
        self._request(method, record.route, model, record.status).inc()
        if model:
            seconds, queue = self._times(model, record.status)
            seconds.observe(record.total)
            queue.observe(record.queue)
        self.in_flight.dec()

    def item(self, model: str, status: int) -> None:
        """Count one result of a response that holds several."""
        self._items.labels(self._bounded(model, known=status == 200), status).inc()

    def page(self) -> bytes:
        """Return the counts of all processes in Prometheus' text format."""
        if self.folder is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self.folder))  # type: ignore[no-untyped-call]
        return read_consistent(self.folder, lambda: generate_latest(registry))

    def _label(self, record: RequestRecord) -> str:
        if len(record.models) > 1:
            return SEVERAL
        return self._bounded("".join(record.models), known=record.known)

    def _bounded(self, model: str, *, known: bool) -> str:
        if model in self._models or not model:
            return model
        # (JSON can hold half a surrogate pair, which cannot be encoded.)
        if known and model.isprintable() and len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return OTHER
