"""A receiver of traces, made of OpenTelemetry's own messages (opentelemetry-proto).

It is a fake: OpenTelemetry's own collector, a program in Go, was not found on PyPI, npm or Debian.
It takes OTLP over HTTP, in binary as the SDK sends it or in JSON as Triton does, and keeps the
spans.
"""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import wait_for

SERVER, CLIENT = 2, 3  # kinds of spans, as in OTLP
KINDS = {"SPAN_KIND_SERVER": SERVER, "SPAN_KIND_CLIENT": CLIENT}


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came, with ids in hexadecimal and times in seconds since 1970."""

    service: str
    name: str
    trace: str
    identity: str
    parent: str
    kind: int
    start: float
    end: float
    attributes: dict[str, Any]
    failed: bool
    state: str
    events: dict[str, float]


@dataclass
class Collector:
    """What was received, and how the next export is answered.

    Args:
        port: where it listens on loopback.
        status: of its answers.
        delay: seconds until it answers.

    """

    port: int = 0
    status: int = 200
    delay: float = 0.0
    exports: int = 0
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def found(self, trace: str) -> list[ReceivedSpan]:
        """Return the spans of a trace that have come."""
        return [one for one in list(self.spans) if one.trace == trace]

    def trace(self, trace: str, done: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """Return the spans of a trace once all that are waited for have come."""
        found = partial(self.found, trace)
        wait_for(lambda: done(found()), lambda: f"spans of {trace}: {found()}")
        return found()


def value(given: dict[str, Any]) -> Any:
    ((kind, one),) = given.items()
    return int(one) if kind == "intValue" else one


def hexadecimal(identity: str) -> str:
    """Return an id of JSON as it is; one that was turned from bytes into base64, back."""
    return identity if len(identity) in {0, 16, 32} else base64.b64decode(identity).hex()


def read(body: bytes, kind: str) -> Iterator[ReceivedSpan]:
    if kind == "application/json":
        document = json.loads(body)
    else:
        document = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for resource in document["resourceSpans"]:
        about = {one["key"]: value(one["value"]) for one in resource["resource"]["attributes"]}
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                kind_of = span.get("kind", 0)
                yield ReceivedSpan(
                    about["service.name"],
                    span["name"],
                    hexadecimal(span["traceId"]),
                    hexadecimal(span["spanId"]),
                    hexadecimal(span.get("parentSpanId", "")),
                    kind_of if isinstance(kind_of, int) else KINDS.get(kind_of, 0),
                    int(span["startTimeUnixNano"]) / 1e9,
                    int(span["endTimeUnixNano"]) / 1e9,
                    {one["key"]: value(one["value"]) for one in span.get("attributes", ())},
                    span.get("status", {}).get("code") in {2, "STATUS_CODE_ERROR"},
                    span.get("traceState", ""),
                    {e["name"]: int(e["timeUnixNano"]) / 1e9 for e in span.get("events", ())},
                )


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """Receive traces on a port of loopback; on a free one where none is given."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(collector.delay)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.exports += 1
            status = collector.status if self.path == "/v1/traces" else 404
            if status == 200:
                collector.headers = dict(self.headers)
                collector.spans += read(body, self.headers["Content-Type"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # an exporter that did not wait

    with Server(("127.0.0.1", port), Handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
