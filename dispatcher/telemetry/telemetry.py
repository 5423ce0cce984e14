"""Follows each request until its response was sent, then counts and logs it once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flask import Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from dispatcher.codecs.responses import OK, SentResult
from dispatcher.errors import ANSWERS, CallerGone
from dispatcher.telemetry.multiprocess import DIR_VARIABLE, SEAT_VARIABLE, extend
from dispatcher.telemetry.request_log import AccessLog, RequestRecord

if TYPE_CHECKING:
    from dispatcher.telemetry.traces import Traces

log = logging.getLogger(__name__)

# Callers choose the model's name: only this many existing models have a label of their own.
MAX_MODELS = 200
OTHER = "other"
SEVERAL = "several"

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Metrics:
    """The counters and histograms of requests, over all web workers, for the models that exist.

    Where several processes count, the environment has the folder, which it had at the import of
    prometheus_client too, and this worker's seat in it.
    """

    def __init__(
        self,
        models: Iterable[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        workers: int = 1,
    ) -> None:
        self.workers = workers
        given = environment.get(DIR_VARIABLE)
        self.folder = folder = Path(given) if given else None
        self.seat = int(environment.get(SEAT_VARIABLE, "0"))
        if folder:
            values.ValueClass = values.MultiProcessValue(lambda: self.seat)  # type: ignore[no-untyped-call]
        self._models = set(models)
        self._registry = CollectorRegistry()
        self.registry = registry = None if folder else self._registry
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, labelnames=("model", "status"), registry=registry)
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self._requests = counter(
            "dispatcher_requests",
            "Requests that a web worker has answered.",
            ("method", "route", "model", "status"),
        )
        self._seconds = histogram(
            "dispatcher_request_seconds",
            "Seconds from when NGINX had a request that asks a model until its answer was sent.",
            buckets=REQUEST_S,
        )
        self._queue = histogram(
            "dispatcher_queue_seconds",
            "Seconds of those that a request waited in the queue.",
            buckets=QUEUE_S,
        )
        self._s3 = histogram(
            "dispatcher_s3_seconds",
            "Seconds of those that a request waited for objects in S3, where it named some.",
            buckets=REQUEST_S,
        )
        self._items = counter(
            "dispatcher_items",
            "Results in responses that hold several: of lists, several models and JSON lines.",
            ("model", "status"),
        )
        self._rollout = histogram(
            "dispatcher_rollout_seconds",
            "Seconds of the calls of a model with a rollout: stable version, canary and shadow.",
            labelnames=("model", "of", "status"),
            buckets=REQUEST_S,
        )
        self._shadow = counter(
            "dispatcher_shadow_comparisons",
            "Answers of a model that a shadow was to be compared with, by what was found.",
            ("model", "found"),
        )
        self._captured = counter(
            "dispatcher_captured_requests",
            "Sampled requests (CAPTURE_TO), by what became of them: `written`, or why not.",
            ("outcome",),
        )
        self._keys = counter(
            "dispatcher_key_requests",
            "Requests by the name of their API key, and by the limit of the key that refused them.",
            ("key", "refused_by"),
        )
        self.in_flight = gauge(
            "dispatcher_requests_in_flight",
            "Requests that the web workers are answering, including this one.",
        )
        self._saturation = gauge(
            "dispatcher_saturation_ratio",
            "Share of its slots that the busiest model uses, 0 to 1; the mean of all web workers.",
        )
        # Cached: the library looks labels up for each call.
        self._child = cache(self._new_child)
        self._room = True

    def request(self, record: RequestRecord) -> None:
        self.in_flight.dec()
        model, status = self._label(record), record.status
        method = record.method if record.route else ""
        with self._counting():
            self._child(self._requests, method, record.route, model, status).inc()
            if model:
                self._child(self._seconds, model, status).observe(record.total)
                self._child(self._queue, model, status).observe(record.queue)
                if record.s3:
                    self._child(self._s3, model, status).observe(record.s3)
            if record.key:
                self._child(self._keys, record.key, record.limit).inc()

    def item(self, model: str, status: int) -> None:
        label = self._bounded(model, known=status == 200)
        with self._counting():
            self._child(self._items, label, status).inc()

    def rollout(self, model: str, of: str, status: int, seconds: float, found: str) -> None:
        """Count a call of a model with a rollout, and what was found of a shadow."""
        model = self._bounded(model, known=True)
        with self._counting():
            if status:  # it was not dropped
                self._child(self._rollout, model, of, status).observe(seconds)
            if found:
                self._child(self._shadow, model, found).inc()

    def capture(self, outcome: str) -> None:
        """Count a sampled request: `written`, `queue_full` or `not_written`."""
        with self._counting():
            self._child(self._captured, outcome).inc()

    def note_saturation(self, share: float) -> None:
        self._saturation.set(share / self.workers)  # the mean is the sum of these

    def _new_child(self, family: Any, *labels: object) -> Any:
        """Return what counts for some labels."""
        if self.folder:
            extend(self.folder, self.seat)
        return family.labels(*labels)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Log once where something cannot be counted, as the disk is full."""
        try:
            yield
        except OSError as error:
            if self._room:
                log.warning("some counts will be missing from /metrics: %s", error)
            self._room = False

    def page(self) -> bytes:
        """Return the counts of all processes in Prometheus' text format."""
        if self.folder is None:
            return generate_latest(self._registry)
        collector = MultiProcessCollector(None, str(self.folder))  # type: ignore[no-untyped-call]
        return generate_latest(collector)

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


@dataclass
class Telemetry:
    """Counts and logs requests."""

    metrics: Metrics
    access_log: AccessLog | None = None
    traces: Traces | None = None
    # Samples a request; returns what takes its answer, if it does.
    capture: Callable[[RequestRecord, Request], Callable[[Response], None] | None] | None = None

    def begin(
        self, request: Request, request_id: str, queue: float, *, counts: bool
    ) -> RequestRecord:
        """Return the record of a new request, which is not reported unless it counts."""
        if counts:
            self.metrics.in_flight.inc()
        now = time.monotonic()
        record = RequestRecord(
            reported=not counts,
            since=now - queue,
            began=now,
            request_id=request_id,
            method=request.method,
            route=request.url_rule.rule if request.url_rule else "",
            path=request.path,
            bytes_in=request.content_length or 0,
            queue=queue,
        )
        if self.traces:
            self.traces.begin(record, request, wanted=counts)
        if self.capture:
            record.captured = self.capture(record, request)
        return record

    def finish(self, record: RequestRecord, response: Response) -> None:
        """Note the response; report the request when it was sent."""
        record.status = response.status_code
        record.answered = time.monotonic()
        if record.trace:
            record.trace.answer(response.headers)
        if not record.models:
            record.name(record.modelname)
        if response.is_sequence:
            record.bytes_out = response.content_length or 0
        else:  # asking for its length would collect all of it before the first line is sent
            response.response = count_bytes(response.iter_encoded(), record)
        response.call_on_close(partial(self.report, record))
        if record.captured:
            # (One that was answered in the place of its thread has been reported.)
            if not record.reported:
                record.captured(response)
            record.captured = None

    def timed_out(self, record: RequestRecord, status: int, code: str) -> None:
        """Report a request that was answered in the place of its own thread."""
        record.status, record.code = status, code
        record.timings = None  # of unfinished phases
        self.report(record)

    def report(self, record: RequestRecord) -> None:
        """Count and log a request whose response was sent, once."""
        if record.reported:
            return
        record.reported = True
        record.total = time.monotonic() - record.since
        record.at = time.time() - record.total
        if record.trace:
            record.trace.report(record)
        self.metrics.request(record)
        if self.access_log:
            self.access_log.put(record)

    def items(self, items: Iterable[SentResult], record: RequestRecord) -> Iterator[SentResult]:
        """Yield the results of a response that holds several, and count them."""
        for item in items:
            record.name(item.modelname)
            record.items += 1
            record.failed += item.status != OK
            self.metrics.item(item.modelname, item.status)
            yield item


def count_bytes(pieces: Iterator[bytes], record: RequestRecord) -> Iterator[bytes]:
    """Yield the pieces of a streamed response, and count their bytes.

    It ends early where the caller is gone, and the record says so.
    """
    try:
        for piece in pieces:
            record.bytes_out += len(piece)
            yield piece
    except (CallerGone, GeneratorExit):
        record.status, record.code = ANSWERS[CallerGone]
