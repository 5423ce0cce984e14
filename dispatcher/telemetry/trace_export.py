"""Sends spans to a collector, by OpenTelemetry's own SDK.

They are sent over HTTP: gRPC would have a second pool of threads in each worker, and Triton knows
HTTP alone, so that one address serves both. The thread that sends begins after the fork, as the
whole application does. No request waits for it: what the queue has no room for, and what the
collector does not take, is dropped and counted.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from prometheus_client import CollectorRegistry, Counter

log = logging.getLogger(__name__)

QUEUE = 4096  # spans that wait, some 5 MB
BATCH = 512  # spans of one export
DELAY_MS = 2000.0  # between exports, unless a batch is full
EXPORT_S = 5.0  # for one export, with its repetitions
FLUSH_MS = 1000  # at the end of a worker
WARN_S = 60.0  # between two warnings
MAX_REASON = 500


class BoundedProcessor(BatchSpanProcessor):
    """Passes spans to an exporter in batches; it counts those for which there is no room.

    Args:
        url: of the collector.
        registry: of the metrics.

    """

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
    """Sends spans to the collector; it counts those that are not taken, and warns now and then.

    Args:
        url: of the collector.
        failed: counts spans.

    """

    def __init__(self, url: str, failed: Counter) -> None:
        super().__init__(url, timeout=EXPORT_S)
        self._url = url
        self._failed = failed
        self._reasons = LastMessages()
        # They come here in the place of the log.
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers, sdk.propagate = [self._reasons], False
        self._lost = 0
        self._silent_until = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans."""
        result = super().export(spans)  # which catches every error, its own too
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


class LastMessages(logging.Handler):
    """Keeps the last messages of the SDK, which has one or two for each failed export."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: deque[str] = deque(maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage()[:MAX_REASON])
