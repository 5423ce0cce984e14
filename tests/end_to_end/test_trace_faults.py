"""What happens to requests while the collector of traces is away or slow: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from dispatcher.telemetry import trace_export
from tests.conftest import PROJECT, Endpoint, free_ports, wait_for
from tests.support.collector import collecting
from tests.support.front import front
from tests.support.telemetry import scraped, value

DROPPED = "dispatcher_trace_spans_dropped_total"
SPANS = 4  # queue, read, admission, decode … of one request, at least


def ask(endpoint: Endpoint, times: int) -> None:
    body = json.dumps({"modelname": "double", "payload": {"numbers": [1]}})
    for _ in range(times):
        answer = endpoint.call("/invocations", body)
        assert (answer.status, answer.json["result"]) == (200, [2.0])


def warnings(endpoint: Endpoint) -> list[str]:
    lines = endpoint.log.read_text().splitlines()
    return [line for line in lines if "spans batch" in line]


@pytest.mark.slow
def test_requests_are_answered_while_the_collector_is_away(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with front(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}") as endpoint:

        def dropped() -> float:
            return value(scraped(endpoint), DROPPED, reason="export_failed")

        ask(endpoint, 10)
        wait_for(lambda: dropped() >= 10 * SPANS, 20, "spans that are counted as dropped")
        ask(endpoint, 5)
        before = dropped()
        wait_for(lambda: dropped() > before, 20, "a second export")
        (warning,) = warnings(endpoint)
        assert "Connection refused" in warning
        with collecting(port) as collector:
            ask(endpoint, 1)
            wait_for(lambda: collector.spans, 20, "spans after the collector has come back")


def test_a_full_queue_is_counted_and_the_end_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_export, "QUEUE", 20)
    monkeypatch.setattr(trace_export, "BATCH", 10)
    monkeypatch.setattr(trace_export, "FLUSH_MS", 100)
    registry = CollectorRegistry()
    with collecting() as collector:
        collector.delay = 5
        processor = trace_export.BoundedProcessor(f"{collector.url}/v1/traces", registry)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("test")
        for _ in range(10):
            tracer.start_span("first").end()
        wait_for(
            lambda: not processor._batch_processor._queue, 10, "the first batch, which is under way"
        )
        for _ in range(50):
            tracer.start_span("next").end()
        assert registry.get_sample_value(DROPPED, {"reason": "queue_full"}) == 30
        provider.shutdown()
        assert not collector.exports, "the end came before the answer"


LOADED = """
import os, sys
from tests.support.front import build

def loaded(**variables):
    os.environ |= variables
    build()
    return [name for name in sys.modules if name.startswith(("opentelemetry", "requests"))]

assert loaded() == []
url = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
assert loaded(**url, OTEL_SDK_DISABLED="true") == []
assert "opentelemetry.sdk.trace" in loaded(**url, OTEL_SDK_DISABLED="false")
"""


def test_nothing_is_imported_without_a_collector(tmp_path: Path) -> None:
    environment = {**os.environ, "MODEL_REPOSITORY": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LOADED], cwd=PROJECT, env=environment, check=True)
