"""Sends spans to a collector, by OpenTelemetry's own SDK.

They are sent over HTTP: gRPC would have a second pool of threads in each worker, and Triton knows
HTTP alone, so that one address serves both. The thread that sends begins after the fork, as the
whole application does. No request waits for it: what the queue has no room for, and what the
collector does not take, is dropped and counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from prometheus_client import CollectorRegistry, Counter

QUEUE = 4096  # spans that wait, some 5 MB
BATCH = 512  # spans of one export
DELAY_MS = 2000.0  # between exports, unless a batch is full
EXPORT_S = 5.0  # for one export, with its repetitions
FLUSH_MS = 1000  # at the end of a worker
WARN_S = 60.0  # between two messages of the SDK


class BoundedProcessor(BatchSpanProcessor):
    """Passes spans to an exporter in batches; it counts those for which there is no room."""

    def __init__(self, url: str, registry: CollectorRegistry | None) -> None:
        dropped = Counter(
            "dispatcher_trace_spans_dropped",
            "Spans that were dropped: the queue had no room, or the collector did not take them.",
            ("reason",),
            registry=registry,
        )
        self._full, failed = dropped.labels("queue_full"), dropped.labels("export_failed")
        # With room for threads that meet here: the SDK itself drops the oldest, and counts none.
        super().__init__(Exporter(url, failed), QUEUE + BATCH, DELAY_MS, BATCH, EXPORT_S * 1000)

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span until the next batch."""
        if len(self._batch_processor._queue) < QUEUE:  # noqa: SLF001  its length is not public
            super().on_end(span)
        else:
            self._full.inc()

    def shutdown(self) -> None:
        """Send what waits, within `FLUSH_MS`."""
        self._batch_processor.shutdown(FLUSH_MS)


class Exporter(OTLPSpanExporter):
    """Sends spans to the collector; it counts those that are not taken."""

    def __init__(self, url: str, failed: Counter) -> None:
        super().__init__(url, timeout=EXPORT_S)
        self._failed = failed
        logging.getLogger(trace_exporter.__name__).addFilter(limit_messages())

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)  # which catches and logs every error
        if result is not SpanExportResult.SUCCESS:
            self._failed.inc(len(spans))
        return result


def limit_messages() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that lets one message a minute pass; the first says why an export fails."""
    silent_until = 0.0

    def passes(_: logging.LogRecord) -> bool:
        nonlocal silent_until
        if time.monotonic() < silent_until:
            return False
        silent_until = time.monotonic() + WARN_S
        return True

    return passes
