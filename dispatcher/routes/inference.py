"""The routes that run inference."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flask import Blueprint, Request, Response, g, request

from clients.errors import (
    BadRequest,
    DeadlineExceeded,
    InferenceError,
    ModelUnavailable,
    UnknownModel,
)
from clients.request import Timings
from clients.tensors.client import TensorResult
from dispatcher.auth.authorization import OF_JOB
from dispatcher.codecs.content_types import LINE_TYPES, decompress_body, read_body
from dispatcher.codecs.error_responses import encode_item
from dispatcher.codecs.json_request import read_lines
from dispatcher.codecs.metadata import (
    ATTRIBUTES,
    Metadata,
    TimeLimit,
    format_attributes,
    prefers_async,
    read_metadata,
    session_headers,
    starts_sequence,
)
from dispatcher.codecs.responses import (
    CSV,
    EVENTS,
    IMAGE_TYPES,
    JSON,
    LINES,
    NPY,
    available_types,
    csv_response,
    json_response,
    lines_response,
    negotiate,
    negotiate_lines,
    results_by_name,
    results_response,
)
from dispatcher.errors import ANSWERS
from dispatcher.execution.admission import Admission
from dispatcher.execution.executor import Executor, Series, store_answer
from dispatcher.execution.prepared import PreparedRequest, prepare
from dispatcher.execution.slots import STARTS, Slot, Slots
from dispatcher.execution.watchdog import send_timeout, shut_down
from dispatcher.model_request import InferenceRequest, ModelRequest, RequestList, SeveralModels
from dispatcher.routes.jobs import Later
from dispatcher.routes.streams import release_slot, results_in_lines, spool, stream_response
from dispatcher.s3.reading import find_stored, wait_for_objects
from dispatcher.s3.step import Output, Step
from dispatcher.settings import Settings
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.telemetry.telemetry import Telemetry
from dispatcher.v2.binary_tensors import SAGEMAKER_TYPE, read_tensors, with_tensors


def inference_routes(invocation: InferenceHandler) -> Blueprint:
    routes = Blueprint("invocations", __name__)

    @routes.post("/predict")  # the name in tutorials of FastAPI
    @routes.post("/invocations")
    def invocations() -> Response:
        return invocation.answer("")

    @routes.post("/endpoints/<name>/invocations")
    def service_invocations(**_: str) -> Response:  # every endpoint is this one
        """Ask the model that the request names, for clients of the hosting service."""
        return invocation.answer("")

    @routes.post("/endpoints/<name>/<call>")
    def service_call(call: str, **_: str) -> Response:
        """Refuse calls that the hosting service itself answers."""
        raise BadRequest(
            f"{call[:100]!r} is a call that the hosting service alone answers, not a container",
            hint="ask by invoke_endpoint (POST /endpoints/{name}/invocations); with Accept: "
            "application/jsonlines a list is answered line by line; `dispatcher emulate` in front "
            "answers the others",
        )

    @routes.post("/infer/<model>")
    def infer(model: str) -> Response:
        return invocation.answer(model)

    @routes.post("/models/<model>/invoke")
    def invoke(model: str) -> Response:
        """Ask a model of a multi-model endpoint; 404 if it is not loaded."""
        if not invocation.executor.lookup.is_served(model):
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="POST /models loads a model"
            )
        return invocation.answer(model)

    return routes


@dataclass
class InferenceHandler:
    """Answers the current request of Flask."""

    settings: Settings
    executor: Executor
    admission: Admission
    telemetry: Telemetry
    s3: Step | None
    later: Later | None

    def __post_init__(self) -> None:
        # Each request reads them.
        self.max_body, self.client_timeout = self.settings.max_body, self.settings.client_timeout

    def answer(self, path_model: str) -> Response:
        """Read the request by its content type, wait for a slot, and answer."""
        record: RequestRecord = g.record
        metadata = self.read_metadata(path_model)
        if self.later and prefers_async(request.headers) and OF_JOB not in request.environ:
            return self.later.accept(metadata)
        stream = request.mimetype in LINE_TYPES
        metadata = replace(metadata, time_limit=self.time_limit(metadata, stream=stream))
        record.modelname = metadata.modelname(None)
        decompress_body(request, self.max_body, self.admission.bodies)
        if request.mimetype == SAGEMAKER_TYPE:
            return self.tensors(metadata)
        lines = negotiate_lines(metadata.accept) if stream else ""
        with ExitStack() as until_sent:
            asked: InferenceRequest
            if stream:
                body = spool(self.admission.bodies, until_sent)
                asked = RequestList(read_lines(body, metadata))
            else:
                until_sent.callback(self.admission.bodies.take_body(request))
                asked = read_body(request, metadata)
                if record.may_ask and not isinstance(asked, ModelRequest):  # all, or none is asked
                    for one in asked.model_requests:
                        if isinstance(one, ModelRequest):
                            record.may_ask.check(one.modelname)
            if self.s3:
                reads = self.s3.reads(record)
                until_sent.callback(reads.close)
                asked = self.s3.resolve(asked, reads, metadata.texts)
            response = self.respond(asked, metadata, lines)
            response.call_on_close(until_sent.pop_all().close)
        return response

    def read_metadata(self, path_model: str = "") -> Metadata:
        """Read what the current request says outside of its body."""
        return read_metadata(path_model, self.settings)

    def tensors(
        self,
        metadata: Metadata,
        read: Callable[[Request, Metadata], ModelRequest] = read_tensors,
        *,
        stream: bool = False,
    ) -> Response:
        """Answer a body of Triton's own protocol, whatever the caller accepts."""
        g.record.modelname, g.record.version = metadata.require_modelname(), metadata.modelversion
        limit = self.time_limit(metadata, stream=stream)
        metadata = replace(metadata, time_limit=limit, accept=EVENTS if stream else "")
        answer = self.streamed if stream else self.one
        with ExitStack() as until_answered:
            until_answered.callback(self.admission.bodies.take_body(request))
            return answer(read(request, metadata), metadata)

    def respond(self, asked: InferenceRequest, metadata: Metadata, lines: str) -> Response:
        """Answer a request as it was read; one of lines in the form that `lines` names."""
        if not isinstance(asked, ModelRequest):
            return self.several(asked, replace(metadata, session=""), lines)  # one at a time has it
        if asked.is_list:
            return self.payloads(asked, metadata)
        if LINES in metadata.accept or EVENTS in metadata.accept:
            return self.streamed(asked, metadata)
        return self.one(asked, metadata)

    @contextmanager
    def call(
        self, model_request: ModelRequest, metadata: Metadata, deadline: float
    ) -> Iterator[PreparedRequest]:
        """Prepare a request that makes one call, in a slot which it has until the block ends."""
        kind = STARTS if starts_sequence(model_request.parameters, metadata) else ""
        slot = self.enter(self.admission.calls, model_request, deadline, kind=kind)
        if connection := g.caller.connection:
            name = model_request.modelname
            slot.on_timeout = partial(self.answer_timeout, connection, g.record, name)
        with slot:
            yield self.prepare_and_note(model_request, metadata, deadline)

    def one(self, model_request: ModelRequest, metadata: Metadata) -> Response:
        """Answer a request with one payload, in this thread."""
        deadline = metadata.time_limit.deadline()
        with self.call(model_request, metadata, deadline) as call:
            chosen = negotiate(metadata.accept, available_types(model_request, call.client))
            if chosen != JSON:
                refuse_to_keep(model_request, chosen)
            prepared = call
            if chosen in IMAGE_TYPES:
                prepared = replace(call, request=replace(call.request, draws=True))
            result = prepared.result()
            if chosen == JSON:
                answer = prepared.body(result)
                response = json_response(answer)
                if isinstance(result, TensorResult) and result.binary:
                    response = with_tensors(response, result.binary.values(), request)
            elif chosen == CSV:
                response = csv_response(split_rows(result))
            elif chosen == NPY and isinstance(result, TensorResult):
                response = Response(result.npy(), mimetype=NPY)
            else:
                response = Response(prepared.drawn(result, chosen), mimetype=chosen)
        if chosen == JSON and model_request.output is not None:
            response = json_response(store_answer(model_request, answer, deadline))
        return with_attributes(response, prepared)

    def streamed(self, model_request: ModelRequest, metadata: Metadata) -> Response:
        """Answer with the results of one payload as the model gives them, if it gives several."""

        def answer(series: Series) -> Response:
            prepared = self.prepare_and_note(model_request, metadata, series.time_limit.ends)
            offered = available_types(model_request, prepared.client)
            if prepared.streams():
                offered = (*offered, LINES, EVENTS)
            form = negotiate(metadata.accept, offered)
            if form not in {LINES, EVENTS}:
                return self.one(model_request, metadata)
            refuse_to_keep(model_request, form)
            response = stream_response(prepared, series, form, self.telemetry)
            return with_attributes(response, prepared)

        return self.as_series(model_request, metadata, answer, stream=True, only=True)

    def answer_timeout(
        self, connection: socket.socket, record: RequestRecord, modelname: str
    ) -> None:
        """Answer in the place of a thread that does not return in time."""
        send_timeout(connection, record, modelname)
        record.name(modelname)
        self.telemetry.timed_out(record, *ANSWERS[DeadlineExceeded])

    def payloads(self, model_request: ModelRequest, metadata: Metadata) -> Response:
        """Answer a request with a list of payloads, a batch at a time."""
        form = negotiate(metadata.accept, (JSON, LINES, CSV))
        stream = form == LINES
        if form != JSON:
            refuse_to_keep(model_request, form)

        def answer(series: Series) -> Response:
            prepared = self.prepare_and_note(model_request, metadata, series.time_limit.deadline())
            batches = self.executor.batches(prepared, series)
            if stream:
                return results_in_lines(batches, prepared, LINES, self.telemetry)
            if form == CSV:  # whole or not at all: no row could be an error
                response = csv_response(itertools.chain.from_iterable(batches))
                return with_attributes(response, prepared)
            body = prepared.body(list(itertools.chain.from_iterable(batches)))
            body = store_answer(model_request, body, series.time_limit.deadline())
            return with_attributes(json_response(body), prepared)

        return self.as_series(model_request, metadata, answer, stream=stream, only=True)

    def several(
        self, asked: SeveralModels | RequestList, metadata: Metadata, lines: str
    ) -> Response:
        """Answer several requests, each with its own status; lines as they come."""
        stream = bool(lines) or negotiate(metadata.accept, (JSON, LINES)) == LINES
        requests = iter(asked.model_requests)
        first = next(requests, None)

        def answer(series: Series) -> Response:
            if isinstance(asked, SeveralModels):
                results = self.executor.by_name(asked.model_requests, metadata, series)
                if stream:
                    results = {name: {"modelname": name, **one} for name, one in results.items()}
                made = (encode_item(one, name) for name, one in results.items())
                each = list(self.telemetry.items(made, g.record))
                return lines_response(one.text for one in each) if stream else results_by_name(each)
            every = itertools.chain([first] if first is not None else [], requests)
            encoded = map(encode_item, self.executor.items(every, metadata, series))
            items = self.telemetry.items(encoded, g.record)
            if stream:
                return lines_response((one.text for one in items), lines or LINES)
            return results_response(items)

        return self.as_series(first, metadata, answer, stream=stream, only=False)

    def as_series(
        self,
        first: ModelRequest | InferenceError | None,
        metadata: Metadata,
        answer: Callable[[Series], Response],
        *,
        stream: bool,
        only: bool,
    ) -> Response:
        """Answer with several calls, in a slot that is held until the response is sent."""
        time_limit = self.time_limit(metadata, stream=stream)
        slot = self.enter(self.admission.series, first, time_limit.deadline(), only=only)
        if stream and g.caller.connection:
            # A caller that reads too slowly is disconnected.
            slot.deadline = time_limit.ends + self.client_timeout
            slot.on_timeout = partial(shut_down, g.caller.connection)
        with ExitStack() as until_sent:
            until_sent.enter_context(slot)
            response = answer(Series(time_limit, g.caller, slot))
            until_sent.pop_all()
        response.call_on_close(partial(release_slot, slot))
        return response

    def enter(
        self,
        slots: Slots,
        first: ModelRequest | InferenceError | None,
        deadline: float,
        *,
        only: bool = True,
        kind: str = "",
    ) -> Slot:
        """Wait for the first object of the current request in S3, then for a slot.

        Where the first is the only one, it fails at once if its model does not answer. `kind` is
        `STARTS` or nothing.

        Raises InferenceError: the model does not answer; S3 or the slots have an error.
        """
        record, lookup = g.record, self.executor.lookup
        lookup.follow()
        asked = first if isinstance(first, ModelRequest) else ModelRequest("", [])
        if only:
            record.modelname = asked.modelname
            if record.may_ask:
                record.may_ask.check(asked.modelname)
            lookup.refuse(asked.modelname)
        alone = only and not asked.is_list
        if self.s3 and (objects := find_stored(asked)):
            if only:
                with suppress(ModelUnavailable):  # one to be loaded is loaded in its slot
                    lookup.find(asked.modelname)  # an unknown model has nothing read
            wait_for_objects(objects, deadline, alone=alone)
        record.entering = time.monotonic()
        try:
            name = lookup.registry.name(asked.modelname) + kind
            slot = slots.enter(name, deadline, g.caller)
        finally:
            record.queue = time.monotonic() - record.since - record.s3
        return slot

    def prepare_and_note(
        self, model_request: ModelRequest, metadata: Metadata, deadline: float
    ) -> PreparedRequest:
        """Prepare the request to the only model; note it in the record."""
        record: RequestRecord = g.record
        record.version = model_request.modelversion
        record.timings = Timings()
        prepared = prepare(self.executor.lookup, model_request, metadata, deadline, record=record)
        record.known, record.parameters = True, prepared.request.parameters
        return prepared

    def time_limit(self, metadata: Metadata, *, stream: bool) -> TimeLimit:
        """Return the time limit of a request, counted from when NGINX had all of it."""
        stream = stream or OF_JOB in request.environ  # nobody waits for a job
        each = min(self.client_timeout, metadata.timeout)
        return TimeLimit(g.record.since + (self.settings.stream_timeout if stream else each), each)


def split_rows(result: Any) -> Iterator[Any]:
    """Yield the rows in the result of one payload: those of tensors, else all of it."""
    several = isinstance(result, list) and bool(result) and isinstance(result[0], TensorResult)
    for part in result if several else [result]:  # several of a decoupled model
        yield from part.rows() if isinstance(part, TensorResult) else [part]


def refuse_to_keep(asked: ModelRequest, form: str) -> None:
    """Refuse to store an answer that is sent in another form than one JSON document."""
    if isinstance(asked.output, Output):
        asked.output.refuse(form)


def with_attributes(response: Response, prepared: PreparedRequest) -> Response:
    if attributes := prepared.request.response_attributes:
        response.headers[ATTRIBUTES] = format_attributes(attributes)
    response.headers.update(session_headers(prepared.request.sequence))
    return response
