"""Traces through the whole container, as a collector gets them, and while it is away."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Answer, Endpoint, free_ports, running, wait_for
from tests.end_to_end.conftest import write_own_client
from tests.support.collector import CLIENT, SERVER, Collector, ReceivedSpan, collecting
from tests.support.front import front, sagemaker_runtime
from tests.support.telemetry import lines_of, scraped, value

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # as in the W3C's examples
SAMPLED = f"00-{TRACE}-{PARENT}-01"
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
OF_TRITON = ("InferRequest", "double", "compute")
TRIES = 6

# A class that asks another one, and itself asks Triton as well.
QUADRUPLE = """
from clients.base import Client

class Quadruple(Client):
    modelname = "quadruple"
    example = {"numbers": [1]}

    def inference(self, payload):
        doubled = self.ask("double", payload)
        numbers = self.numbers({"numbers": doubled}, "numbers")
        return self.infer({"INPUT": numbers[None]}, model="double")["OUTPUT"][0].tolist()
"""


@dataclass
class Traced:
    """A container, and the collector that it sends its traces to."""

    endpoint: Endpoint
    collector: Collector

    def ask(self, model: str = "double", path: str = "/invocations", **headers: str) -> Answer:
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        body = json.dumps({"modelname": model, "payload": {"numbers": [1, 2]}})
        return self.endpoint.call(path, body, headers=names)

    def spans(self, answer: Answer) -> dict[str, ReceivedSpan]:
        """Return the spans of an answer's trace by name, once it has come."""
        return {one.name: one for one in self.collector.trace(trace_of(answer), whole)}

    def with_spans_of_triton(
        self, ask: Callable[[], Answer], calls: int = 1
    ) -> tuple[Answer, list[ReceivedSpan]]:
        """Ask several times; return the first answer whose trace has Triton's spans of all calls.

        Triton has none for up to one call in ten (docs/traces.md), whatever is waited for.
        """
        answers = [ask() for _ in range(TRIES)]

        def complete() -> Iterator[tuple[Answer, list[ReceivedSpan]]]:
            for answer in answers:
                spans = self.collector.found(trace_of(answer))
                if whole(spans) and sum(one.name in OF_TRITON for one in spans) == calls * 3:
                    yield answer, spans

        wait_for(lambda: any(complete()), "Triton's spans of any request")
        return next(complete())


def whole(spans: list[ReceivedSpan]) -> bool:
    """Whether the outermost span of a request has come: it is sent last."""
    return any(one.name.startswith("POST ") for one in spans)


def trace_of(answer: Answer) -> str:
    match = re.fullmatch(r"00-([0-9a-f]{32})-[0-9a-f]{16}-0[13]", answer.headers["traceparent"])
    assert match
    return match[1]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "repository").mkdir()
    write_own_client(folder, folder / "repository")
    (folder / "clients" / "quadruple.py").write_text(QUADRUPLE)
    with (
        collecting() as collector,
        running(
            folder,
            MODEL_REPOSITORY=str(folder / "repository"),
            CLIENTS_PATH=str(folder / "clients"),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20secret",
            OTEL_RESOURCE_ATTRIBUTES="service.name=shop,deployment.environment.name=test",
        ) as endpoint,
    ):
        yield Traced(endpoint, collector)


def test_a_request_has_a_span_for_each_phase_and_triton_adds_its_own(traced: Traced) -> None:
    def ask() -> Answer:
        trace = uuid.uuid4().hex
        answer = traced.ask(traceparent=f"00-{trace}-{PARENT}-01", tracestate="vendor=x")
        assert trace_of(answer) == trace
        return answer

    answer, found = traced.with_spans_of_triton(ask)
    spans = {one.name: one for one in found}
    root = spans.pop("POST /invocations")
    assert (root.parent, root.kind, root.state, root.failed) == (PARENT, SERVER, "vendor=x", False)
    assert answer.headers["traceparent"] == f"00-{trace_of(answer)}-{root.identity}-01"
    about = {
        "http.request.method": "POST",
        "http.route": "/invocations",
        "http.response.status_code": 200,
        "http.response.body.size": len(answer.body),
        "dispatcher.model": "double",
        "dispatcher.request_id": answer.headers["X-Request-Id"],
    }
    assert about.items() <= root.attributes.items()
    phases = ["queue", "read", "admission", "infer double", "class", "respond"]  # the last "class"
    assert all(spans[name].parent == root.identity for name in phases)
    starts = [spans[name].start for name in phases]
    assert starts == sorted(starts)
    assert root.start == spans["queue"].start
    assert all(spans[name].end <= root.end + 1e-6 for name in phases)
    call, of_triton, model = (spans[n] for n in ("infer double", "InferRequest", "double"))
    assert (call.kind, call.attributes) == (CLIENT, {"dispatcher.model": "double"})
    # What Triton itself sent: the request, the model with its queue, and its computing.
    assert (of_triton.parent, model.parent) == (call.identity, of_triton.identity)
    assert spans["compute"].parent == model.identity
    assert model.events["QUEUE_START"] <= spans["compute"].start
    assert call.start <= of_triton.start < of_triton.end
    shown = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["Server-Timing"]))
    assert 1000 * (call.end - call.start) == pytest.approx(float(shown["inference"]), abs=0.06)
    assert {one.service for one in spans.values()} == {"shop"}
    assert traced.collector.headers["authorization"] == "Bearer secret"


def test_custom_attributes_name_a_trace_too(traced: Traced) -> None:
    runtime = sagemaker_runtime(traced.endpoint)
    answer = runtime.invoke_endpoint(
        EndpointName="any",
        ContentType="application/json",
        CustomAttributes=f"modelversion=1; traceparent={SAMPLED};tracestate=a=1,b=2",
        Body=json.dumps({"modelname": "double", "payload": {"numbers": [1]}}),
    )
    match = re.fullmatch(f"traceparent=00-{TRACE}-([0-9a-f]{{16}})-01", answer["CustomAttributes"])
    assert match
    spans = traced.collector.trace(TRACE, lambda s: match[1] in {one.identity for one in s})
    root = next(one for one in spans if one.identity == match[1])
    assert root.parent == PARENT
    assert root.state == "a=1,b=2"
    # The header counts more.
    other = f"traceparent=00-{'1' * 32}-{PARENT}-01"
    assert trace_of(traced.ask(traceparent=SAMPLED, **{ATTRIBUTES: other})) == TRACE


@pytest.mark.parametrize("parent", ["nonsense", f"{SAMPLED},{SAMPLED}", "é" * 100, "x" * 2000])
def test_a_bad_traceparent_begins_a_new_trace(traced: Traced, parent: str) -> None:
    answer = traced.ask(traceparent=parent.encode().decode("latin-1"), tracestate="=;,é, ")
    assert answer.status == 200
    assert trace_of(answer) != TRACE
    if parent.isascii() and len(parent) < 500:
        answer = traced.ask(**{ATTRIBUTES: f"traceparent={parent}"})
        assert answer.status == 200
        known = parent.startswith(SAMPLED) and "," in parent  # the comma separates attributes
        assert (trace_of(answer) == TRACE) == known


def test_the_log_names_the_trace_and_a_caller_who_records_nothing_is_not_recorded(
    traced: Traced,
) -> None:
    parent = f"00-{'2' * 32}-{PARENT}-00"
    answer = traced.ask(traceparent=parent)
    assert re.fullmatch(f"00-{'2' * 32}-[0-9a-f]{{16}}-00", answer.headers["traceparent"])
    later = traced.ask(X_Request_Id="traced-1")
    for path in ("/ping", "/models", "/metrics"):  # reading the state is not traced
        assert "traceparent" not in traced.endpoint.call(path).headers
    traced.spans(later)
    assert not [one for one in traced.collector.spans if one.trace == "2" * 32]
    for identity, trace in (
        (answer.headers["X-Request-Id"], "2" * 32),
        ("traced-1", trace_of(later)),
    ):
        (line,) = lines_of(traced.endpoint, identity)
        assert line["trace_id"] == trace


def test_a_model_that_is_asked_by_another_has_spans_of_its_own(traced: Traced) -> None:
    answer, spans = traced.with_spans_of_triton(lambda: traced.ask("quadruple"), calls=2)
    assert answer.json["result"] == [4.0, 8.0]
    (root,) = (one for one in spans if one.kind == SERVER and not one.parent)
    (asked,) = (one for one in spans if one.name == "ask double")
    assert asked.parent == root.identity
    calls = [one.parent for one in spans if one.name == "infer double"]
    assert sorted(calls) == sorted([asked.identity, root.identity])
    inner = {one.name for one in spans if one.parent == asked.identity}
    assert inner == {"class", "infer double"}
    own = {one.name for one in spans if one.parent == root.identity}
    assert own == {"queue", "read", "admission", "class", "ask double", "infer double", "respond"}


def test_each_of_several_requests_has_a_span(traced: Traced) -> None:
    body = {"requests": [{"modelname": m, "payload": {"numbers": [1]}} for m in ("double", "none")]}
    answer = traced.endpoint.call("/invocations", json.dumps(body))
    trace = trace_of(answer)
    spans = traced.collector.trace(trace, whole)
    items = {one.attributes["dispatcher.model"]: one for one in spans if one.name == "item"}
    assert set(items) == {"double", "none"}
    assert [one.parent for one in spans if one.name == "infer double"] == [items["double"].identity]
    root = next(one for one in spans if one.kind == SERVER and not one.parent)
    assert root.attributes["dispatcher.items"] == 2
    assert root.attributes["dispatcher.failed"] == 1


def test_an_error_is_named_and_a_name_that_is_no_text_breaks_no_export(traced: Traced) -> None:
    answer = traced.ask("none")
    odd = traced.endpoint.call("/invocations", '{"modelname": "half \\ud800", "payload": {}}')
    assert answer.status == odd.status == 404
    root = traced.spans(answer)["POST /invocations"]
    assert not root.failed, "a caller's mistake is no failure of the server"
    assert root.attributes["error.type"] == "unknown_model"
    assert root.attributes["http.response.status_code"] == 404
    root = traced.spans(odd)["POST /invocations"]
    assert root.attributes["dispatcher.model"] == "half ?"


def test_triton_s_protocol_is_traced(traced: Traced) -> None:
    tensor = {"name": "INPUT", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]})
    answer, found = traced.with_spans_of_triton(
        lambda: traced.endpoint.call("/v2/models/double/infer", body)
    )
    assert answer.status == 200
    spans = {one.name: one for one in found}
    assert spans["InferRequest"].parent == spans["infer double"].identity


def test_what_is_answered_later_is_a_part_of_the_trace(traced: Traced) -> None:
    answer = traced.ask(traceparent=f"00-{'3' * 32}-{PARENT}-01", Prefer="respond-async")
    assert answer.status == 202
    spans = traced.collector.trace(
        "3" * 32, lambda s: sum(one.name == "POST /invocations" for one in s) == 2
    )
    roots = [one for one in spans if one.name == "POST /invocations"]
    first = next(one for one in roots if one.parent == PARENT)
    (job,) = (one for one in roots if one.parent == first.identity)
    assert job.attributes["http.response.status_code"] == 200
    assert answer.headers["traceparent"] == f"00-{'3' * 32}-{first.identity}-01"
    # The same request again is the same job, though its trace is another.
    identity = answer.json["id"]
    again = traced.ask(
        Prefer="respond-async", X_Amzn_SageMaker_Inference_Id=identity, traceparent=SAMPLED
    )
    assert (again.status, again.json["id"]) == (202, identity)


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
        wait_for(lambda: dropped() >= 10 * SPANS, "spans that are counted as dropped")
        ask(endpoint, 5)
        before = dropped()
        wait_for(lambda: dropped() > before, "a second export")
        (warning,) = warnings(endpoint)
        assert "Connection refused" in warning
        with collecting(port) as collector:
            ask(endpoint, 1)
            wait_for(lambda: collector.spans, "spans after the collector has come back")
