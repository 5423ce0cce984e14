"""Counts requests, for all web workers together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from dispatcher.observability.multiprocess import read_consistent
from dispatcher.observability.record import RequestRecord

# Whoever asks decides on the name of the model: only so many that exist are counted by theirs.
MAX_MODELS = 200
OTHER = "other"
SEVERAL = "several"

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Metrics:
    """Counts.

    Args:
        models: names that exist from the beginning.
        folder: where several processes keep their counts, each in files of its own; the library
            must have been told before it was imported (PROMETHEUS_MULTIPROC_DIR). `None` where
            there is one process.

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
            "Seconds of those that a request waited for its turn.",
            ("model", "status"),
            buckets=QUEUE_S,
            registry=registry,
        )
        self._items = Counter(
            "dispatcher_items",
            "Answers inside of answers: of requests for several, and of JSON lines.",
            ("model", "status"),
            registry=registry,
        )
        self.in_flight = Gauge(
            "dispatcher_requests_in_flight",
            "Requests that the web workers are answering, this one included.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        # The library makes these anew for each call otherwise.
        self._request = cache(self._requests.labels)
        self._times = cache(
            lambda model, status: (
                self._seconds.labels(model, status),
                self._queue.labels(model, status),
            )
        )

    def request(self, record: RequestRecord) -> None:
        """Count a request that is answered."""
        model = self._label(record)
        method = record.method if record.route else ""
        self._request(method, record.route, model, record.status).inc()
        if model:
            seconds, queue = self._times(model, record.status)
            seconds.observe(record.total)
            queue.observe(record.queue)
        self.in_flight.dec()

    def item(self, model: str, status: int) -> None:
        """Count one answer inside of an answer."""
        self._items.labels(self._bounded(model, known=status == 200), status).inc()

    def page(self) -> bytes:
        """Return the counts of all processes as Prometheus reads them."""
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
        # (Half a surrogate pair, which JSON can hold, is not to be written into any page.)
        if known and model.isprintable() and len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return OTHER
