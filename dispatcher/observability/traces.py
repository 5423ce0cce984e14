"""Traces of requests, made and sent by OpenTelemetry's own SDK.

Only a web worker with traces imports this. Spans are made of the times that the log and
Server-Timing have too: of a request, its phases, and its calls of Triton. Triton sends its own
spans of such a call, with its queue and its computing: see `container/programs/triton_options.py`.

They are sent over HTTP: gRPC would have a second pool of threads in each worker, and Triton knows
HTTP alone, so that one address serves both. The thread that sends begins after the fork, as the
whole application does. No request waits for it: what the queue has no room for, and what the
collector does not take, is dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from flask import Request
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as RecordedSpan
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter
from werkzeug.datastructures import Headers

from clients.request import Span, current_span
from dispatcher.codecs.metadata import ATTRIBUTES, MAX_ATTRIBUTES
from dispatcher.observability.request_log import BUG, RequestRecord
from dispatcher.version import VERSION

log = logging.getLogger(__name__)

QUEUE = 4096  # spans that wait, some 10 MB
BATCH = 512  # spans of one export
DELAY_MS = 2000.0  # between exports, unless a batch is full
EXPORT_S = 5.0  # for one export, with its repetitions
FLUSH_MS = 1000  # at the end of a worker
WARN_S = 60.0  # between two warnings
MOST_SPANS = 200  # of one request
MAX_TEXT = 200
MAX_REASON = 500

PARENT, STATE = "traceparent", "tracestate"
READING = frozenset({"GET", "HEAD", "OPTIONS"})  # of health, metrics and lists: no request

propagator = TraceContextTextMapPropagator()


class Traces:
    """Makes a trace of each request that asks for something.

    Args:
        url: where they are sent.
        service: the name of this service.
        registry: of the metrics; `None` where several processes count.

    """

    def __init__(self, url: str, service: str, registry: CollectorRegistry | None) -> None:
        own = Resource({"service.version": VERSION, "process.pid": os.getpid()})
        named = OTELResourceDetector().detect().merge(Resource({"service.name": service}))
        self._provider = TracerProvider(
            resource=Resource.create().merge(own).merge(named), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BoundedProcessor(url, registry))
        self._tracer = self._provider.get_tracer("triton_dispatcher", VERSION)
        atexit.register(self._provider.shutdown)

    def begin(self, record: RequestRecord, request: Request, *, wanted: bool) -> None:
        """Begin the trace of a request, or go on with the one that it names.

        Args:
            record: of the request; it gets the trace.
            request: as Flask has it.
            wanted: whether it comes from a caller.

        """
        current_span.set(None)  # that of the thread's last request
        if not wanted or request.method in READING:
            return
        parent = propagator.extract(carrier_of(request.headers), Context())
        whole = Whole(self._tracer)
        span = self._tracer.start_span(
            f"{record.method} {record.route}".strip(),
            parent,
            SpanKind.SERVER,
            {
                "http.request.method": record.method,
                "http.route": record.route,
                "url.path": cleaned(record.path),
                "http.request.body.size": record.bytes_in,
                "dispatcher.request_id": record.request_id,
            },
            start_time=whole.at(record.since),
        )
        record.trace = trace = RequestTrace(span, whole)
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        current_span.set(trace)
        # For a request that is answered later: its answer becomes a part of this trace.
        for name, text in trace.carrier.items():
            request.environ[f"HTTP_{name.upper()}"] = text


class Whole:
    """What the spans of one request have in common.

    Args:
        tracer: makes spans.

    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.left = MOST_SPANS
        self.under_way: set[Part] = set()
        # One difference for all, so that a clock that is set meanwhile does not matter.
        self._epoch = time.time_ns() - time.monotonic_ns()

    def at(self, when: float) -> int:
        """Return a time of `time.monotonic()` in nanoseconds since 1970."""
        return int(when * 1e9) + self._epoch


class Part(Span):
    """A span that is recorded by the SDK.

    Args:
        span: the SDK's.
        whole: of the request.

    """

    def __init__(self, span: RecordedSpan, whole: Whole) -> None:
        self.span = span
        self.whole = whole
        self.context = set_span_in_context(span, Context())
        self.carrier: dict[str, str] = {}
        propagator.inject(self.carrier, self.context)
        # Triton would record what it is sent, sampled or not.
        self.headers = tuple(self.carrier.items()) if span.is_recording() else ()

    def begin(self, name: str, at: float, model: str = "", *, remote: bool = False) -> Part | None:
        kind = SpanKind.CLIENT if remote else SpanKind.INTERNAL
        if (span := self._child(name, at, kind, model)) is None:
            return None
        part = Part(span, self.whole)
        self.whole.under_way.add(part)
        return part

    def end(self, at: float) -> None:
        try:
            self.whole.under_way.remove(self)
        except KeyError:
            return
        self.span.end(self.whole.at(at))

    def add(self, name: str, begun: float, ended: float) -> None:
        if span := self._child(name, begun):
            span.end(self.whole.at(ended))

    def _child(
        self, name: str, at: float, kind: SpanKind = SpanKind.INTERNAL, model: str = ""
    ) -> RecordedSpan | None:
        if not self.span.is_recording() or self.whole.left <= 0:
            return None
        self.whole.left -= 1
        about = {"dispatcher.model": cleaned(model)} if model else None
        when = self.whole.at(at)
        return self.whole.tracer.start_span(
            cleaned(name), self.context, kind, about, start_time=when
        )


class RequestTrace(Part):
    """The outermost span of a request in this container."""

    def answer(self, headers: Headers) -> None:
        """Say in a response which trace it has; in the custom attributes too, if there is room."""
        parent = headers[PARENT] = self.carrier[PARENT]
        others = [one for one in headers.get(ATTRIBUTES, "").split(";") if one]
        kept = [one for one in others if one.partition("=")[0].strip() not in {PARENT, STATE}]
        attributes = ";".join([*kept, f"{PARENT}={parent}"])
        if len(attributes) <= MAX_ATTRIBUTES:
            headers[ATTRIBUTES] = attributes

    def report(self, record: RequestRecord) -> None:
        """Add what is known at the end of the request, and end it."""
        if not self.span.is_recording():
            return
        ended = record.since + record.total
        self.add("queue", record.since, record.began)
        if record.entering:
            self.add("read", record.began, record.entering)
            self.add("admission", record.entering, record.since + record.queue + record.s3)
        if record.answered:
            self.add("respond", record.answered, ended)
        for part in list(self.whole.under_way):  # of a model that hangs
            part.end(ended)
        about: dict[str, str | int | float] = {
            "http.response.status_code": record.status,
            "http.response.body.size": record.bytes_out,
            "dispatcher.model": cleaned(",".join(record.models)),
            "dispatcher.version": cleaned(record.version),
            "dispatcher.key": cleaned(record.key),
            "dispatcher.items": record.items,
            "dispatcher.failed": record.failed,
            "dispatcher.s3_s": record.s3,
            "error.type": record.code,
        }
        self.span.set_attributes({name: value for name, value in about.items() if value})
        if record.status >= BUG:
            self.span.set_status(StatusCode.ERROR, cleaned(record.message) or None)
        self.span.end(self.whole.at(ended))


def carrier_of(headers: Headers) -> Mapping[str, str]:
    """Return what a request says about its trace, in headers or else in the custom attributes.

    The attributes are read here too: `tracestate` has commas, which separate them elsewhere.
    """
    if parent := headers.get(PARENT):
        return {PARENT: parent, STATE: headers.get(STATE, "")}
    pairs = (one.partition("=") for one in headers.get(ATTRIBUTES, "").split(";"))
    named = {name.strip(): value.strip() for name, _, value in pairs}
    # Attributes of other makers may follow a comma.
    parent = re.split("[,\\s]", named.get(PARENT, ""), maxsplit=1)[0]
    return {PARENT: parent, STATE: named.get(STATE, "")}


def cleaned(text: str) -> str:
    """Return a text that can be sent: JSON can hold half a surrogate pair."""
    return text[:MAX_TEXT].encode(errors="replace").decode()


class BoundedProcessor(BatchSpanProcessor):
    """Passes spans to an exporter in batches; it counts those for which there is no room.

    Args:
        url: of the collector.
        registry: of the metrics.

    """

    def __init__(self, url: str, registry: CollectorRegistry | None) -> None:
        self._waiting = 0
        self._lock = threading.Lock()
        dropped = Counter(
            "dispatcher_trace_spans_dropped",
            "Spans that were dropped: the queue had no room, or the collector did not take them.",
            ("reason",),
            registry=registry,
        )
        self._full, failed = dropped.labels("queue_full"), dropped.labels("export_failed")
        super().__init__(
            Exporter(url, failed, self), QUEUE + BATCH, DELAY_MS, BATCH, EXPORT_S * 1000
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span until the next batch."""
        with self._lock:
            if self._waiting >= QUEUE:
                self._full.inc()
                return
            self._waiting += 1
        super().on_end(span)

    def taken(self, count: int) -> None:
        """Note that spans have left the queue."""
        with self._lock:
            self._waiting -= count

    def shutdown(self) -> None:
        """Send what waits, within `FLUSH_MS`."""
        self._batch_processor.shutdown(FLUSH_MS)


class Exporter(SpanExporter):
    """Sends spans to the collector; it counts those that are not taken, and warns now and then.

    Args:
        url: of the collector.
        failed: counts spans.
        processor: knows how many spans wait.

    """

    def __init__(self, url: str, failed: Counter, processor: BoundedProcessor) -> None:
        self._url = url
        self._failed = failed
        self._processor = processor
        self._exporter = OTLPSpanExporter(url, timeout=EXPORT_S)
        self._reasons = LastMessages.of_sdk()
        self._lost = 0
        self._silent_until = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans."""
        self._processor.taken(len(spans))
        try:
            result = self._exporter.export(spans)
        except Exception:
            log.exception("spans cannot be sent")
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                log.info("the collector of traces takes spans again; %d were dropped", self._lost)
                self._lost, self._silent_until = 0, 0.0
            return result
        self._failed.inc(len(spans))
        self._lost += len(spans)
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + WARN_S
            log.warning(
                "the collector of traces at %s takes no spans, of which %d were dropped; requests "
                "are served all the same: %s",
                self._url,
                self._lost,
                "; ".join(self._reasons.texts),
            )
        return result

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()


class LastMessages(logging.Handler):
    """Keeps the last messages of the SDK, which has one or two for each failed export."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: deque[str] = deque(maxlen=2)

    @classmethod
    def of_sdk(cls) -> LastMessages:
        """Return one that gets all messages of the SDK in the place of the log."""
        handler, sdk = cls(), logging.getLogger("opentelemetry")
        sdk.handlers, sdk.propagate = [handler], False
        return handler

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage()[:MAX_REASON])
