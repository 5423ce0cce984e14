"""Traces of requests, made and sent by OpenTelemetry's own SDK.

Only a web worker with traces imports this. Spans are made of the times that the log and
Server-Timing have too: of a request, its phases, and its calls of Triton. Triton sends its own
spans of such a call, with its queue and its computing: see `container/programs/triton_options.py`.
"""

from __future__ import annotations

import atexit
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flask import Request
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span as RecordedSpan
from opentelemetry.trace import SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry
from werkzeug.datastructures import Headers

from clients.request import Span, current_span
from dispatcher.codecs.metadata import ATTRIBUTES, MAX_ATTRIBUTES
from dispatcher.log_lines import BUG
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.telemetry.trace_export import BoundedProcessor
from dispatcher.version import VERSION

MOST_SPANS = 200  # of one request
MAX_TEXT = 200

SCOPE = "triton_dispatcher"
PARENT, STATE = "traceparent", "tracestate"
READING = frozenset({"GET", "HEAD", "OPTIONS"})  # of health, metrics and lists: no request

propagator = TraceContextTextMapPropagator()


class Traces:
    """Makes a trace of each request that asks for something."""

    def __init__(self, url: str, service: str, registry: CollectorRegistry | None) -> None:
        own = Resource({"service.version": VERSION, "process.pid": os.getpid()})
        named = OTELResourceDetector().detect().merge(Resource({"service.name": service}))
        self._provider = TracerProvider(
            resource=Resource.create().merge(own).merge(named), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BoundedProcessor(url, registry))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)
        atexit.register(self._provider.shutdown)

    def begin(self, record: RequestRecord, request: Request, *, wanted: bool) -> None:
        """Begin the trace of a request, or go on with the one that it names."""
        current_span.set(None)  # that of the thread's last request
        if not wanted or request.method in READING:
            return
        parent = propagator.extract(carrier_of(request.headers), Context())
        # One difference for all spans, so that a clock that is set meanwhile does not matter.
        epoch = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            f"{record.method} {record.route}".strip(),
            parent,
            SpanKind.SERVER,
            {
                "http.request.method": record.method,
                "http.route": record.route,
                "url.path": clean_text(record.path),
                "http.request.body.size": record.bytes_in,
                "dispatcher.request_id": record.request_id,
            },
            start_time=int(record.since * 1e9) + epoch,
        )
        record.trace = trace = RequestTrace(span, self._tracer, epoch)
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        current_span.set(trace)
        # For a request that is answered later: its answer becomes a part of this trace.
        for name, text in trace.carrier().items():
            request.environ[f"HTTP_{name.upper()}"] = text


@dataclass
class RequestSpan(Span):
    """A span of a request."""

    span: RecordedSpan  # the SDK's
    tracer: Tracer  # makes others
    epoch: int  # nanoseconds from the time of `time.monotonic()` to that since 1970
    parts: list[RequestSpan] = field(default_factory=list)  # all others of the request

    @property
    def recorded(self) -> bool:
        """Whether it is sent to the collector."""
        return self.span.get_span_context().trace_flags.sampled

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        # Triton would record what it is sent, sampled or not.
        return tuple(self.carrier().items()) if self.recorded else ()

    def carrier(self) -> dict[str, str]:
        """Write the headers of the W3C that name this span."""
        carrier: dict[str, str] = {}
        propagator.inject(carrier, set_span_in_context(self.span, Context()))
        return carrier

    def begin(
        self, name: str, at: float, model: str = "", *, remote: bool = False
    ) -> RequestSpan | None:
        if not self.recorded or len(self.parts) >= MOST_SPANS:
            return None
        span = self.tracer.start_span(
            clean_text(name),
            set_span_in_context(self.span, Context()),
            SpanKind.CLIENT if remote else SpanKind.INTERNAL,
            {"dispatcher.model": clean_text(model)} if model else None,
            start_time=int(at * 1e9) + self.epoch,
        )
        part = RequestSpan(span, self.tracer, self.epoch, self.parts)
        self.parts.append(part)
        return part

    def end(self, at: float) -> None:
        if self.span.is_recording():
            self.span.end(int(at * 1e9) + self.epoch)

    def add(self, name: str, begun: float, ended: float) -> None:
        if part := self.begin(name, begun):
            part.end(ended)


class RequestTrace(RequestSpan):
    """The outermost span of a request in this container."""

    def answer(self, headers: Headers) -> None:
        """Say in a response which trace it has; in the custom attributes too, if there is room."""
        parent = headers[PARENT] = self.carrier()[PARENT]
        others = [one for one in headers.get(ATTRIBUTES, "").split(";") if one]
        kept = [one for one in others if one.partition("=")[0].strip() not in {PARENT, STATE}]
        attributes = ";".join([*kept, f"{PARENT}={parent}"])
        if len(attributes) <= MAX_ATTRIBUTES:
            headers[ATTRIBUTES] = attributes

    def report(self, record: RequestRecord) -> None:
        """Add what is known at the end of the request, and end it."""
        if not self.recorded:
            return
        ended = record.since + record.total
        self.add("queue", record.since, record.began)
        if record.entering:
            self.add("read", record.began, record.entering)
            self.add("admission", record.entering, record.since + record.queue + record.s3)
        if record.answered:
            self.add("respond", record.answered, ended)
        for part in list(self.parts):  # of a model that hangs
            part.end(ended)
        about: dict[str, str | int | float] = {
            "http.response.status_code": record.status,
            "http.response.body.size": record.bytes_out,
            "dispatcher.model": clean_text(",".join(record.models)),
            "dispatcher.version": clean_text(record.version),
            "dispatcher.key": clean_text(record.key),
            "dispatcher.items": record.items,
            "dispatcher.failed": record.failed,
            "dispatcher.s3_s": record.s3,
            "error.type": record.code,
        }
        self.span.set_attributes({name: value for name, value in about.items() if value})
        if record.status >= BUG:
            self.span.set_status(StatusCode.ERROR, clean_text(record.message) or None)
        self.end(ended)


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


def clean_text(text: str) -> str:
    """Return a text that can be sent: JSON can hold half a surrogate pair."""
    return text[:MAX_TEXT].encode(errors="replace").decode()
