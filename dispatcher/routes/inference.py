"""The routes that ask models."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from flask import Blueprint, Response, g, request

from clients.errors import BadRequest, DeadlineExceeded, InferenceError, UnknownModel
from clients.request import Timings
from clients.tensors.client import TensorResult
from dispatcher import errors
from dispatcher.codecs.content_types import LINES as LINE_TYPES
from dispatcher.codecs.content_types import read_body, unpack
from dispatcher.codecs.json_encoding import encoded
from dispatcher.codecs.json_lines import read_lines, spooled
from dispatcher.codecs.metadata import ATTRIBUTES, Envelope, read_envelope, written_attributes
from dispatcher.codecs.responses import (
    JSON,
    LINES,
    NPY,
    OK,
    Item,
    accepted,
    accepted_for_lines,
    item,
    json_answer,
    lines_answer,
    offers,
    results_answer,
    results_by_name,
)
from dispatcher.errors import CallerGone
from dispatcher.execution.admission import Admission, Caller, Turn
from dispatcher.execution.deadline import Budget
from dispatcher.execution.executor import Dispatcher, Job, Prepared
from dispatcher.execution.request import Ask, MixedList, One, SeveralModels
from dispatcher.execution.watchdog import answer_late, hang_up
from dispatcher.observability.observer import Observer
from dispatcher.observability.record import Record
from dispatcher.settings import Settings


def invocation_routes(
    settings: Settings, dispatcher: Dispatcher, admission: Admission, observer: Observer
) -> Blueprint:
    """Return `/invocations` and its kin."""
    routes = Blueprint("invocations", __name__)
    invocation = Invocation(settings, dispatcher, admission, observer)

    @routes.post("/invocations")
    def invocations() -> Response:
        """Ask the model that the request names."""
        return invocation.answer("")

    @routes.post("/endpoints/<name>/invocations")
    def service_invocations(name: str) -> Response:  # noqa: ARG001  every endpoint is this one
        """Ask the model that the request names, for clients of the hosting service."""
        return invocation.answer("")

    @routes.post("/endpoints/<name>/<call>")
    def service_call(name: str, call: str) -> Response:  # noqa: ARG001
        """Refuse what the hosting service does itself, around the container."""
        raise BadRequest(
            f"{call[:100]!r} is a call that the hosting service alone answers, not a container",
            hint="ask by invoke_endpoint (POST /endpoints/{name}/invocations); with Accept: "
            "application/jsonlines a list is answered line by line, as it is done",
        )

    @routes.post("/infer/<model>")
    def infer(model: str) -> Response:
        """Ask the model that the path names."""
        return invocation.answer(model)

    @routes.post("/models/<model>/invoke")
    def invoke(model: str) -> Response:
        """Ask a model of a multi-model endpoint; one that is not loaded is 404, unread."""
        if not dispatcher.is_served(model):
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="POST /models loads a model"
            )
        return invocation.answer(model)

    return routes


class Invocation:
    """Turns the request that Flask holds into an answer.

    Args:
        settings: of the container.
        dispatcher: asks the models.
        admission: whose turn it is.
        observer: is told what was asked.

    """

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        admission: Admission,
        observer: Observer,
    ) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self.admission = admission
        self.observer = observer

    def answer(self, path_model: str) -> Response:
        """Read the request by its type, wait for its turn, and answer."""
        record: Record = g.record
        envelope = read_envelope(
            request.headers,
            request.args,
            path_model=path_model,
            default_model=self.settings.default_model,
            request_id=record.request_id,
        )
        stream = request.mimetype in LINE_TYPES
        envelope = replace(envelope, budget=self.budget(envelope, record, stream=stream))
        record.modelname = envelope.modelname(None)
        g.caller = Caller(request.environ.get("gunicorn.socket"))
        unpack(request, self.settings.max_body)
        if stream:
            return self.lines(envelope)
        done = self.admission.bodies.take(request.content_length or 0)
        try:
            asked = read_body(request, envelope, self.settings)
            if not isinstance(asked, One):
                response = self.several(asked, envelope)
            elif asked.ask.is_list:
                response = self.payloads(asked.ask, envelope)
            else:
                response = self.one(asked.ask, envelope, record, g.caller)
        except BaseException:
            done()
            raise
        response.call_on_close(done)
        return response

    def one(self, ask: Ask, envelope: Envelope, record: Record, caller: Caller) -> Response:
        """Answer an ask with one payload, in this thread."""
        record.modelname = ask.modelname
        self.dispatcher.refuse(ask.modelname)
        deadline = self.budget(envelope, record).deadline()
        cut = None
        if caller.connection:
            cut = partial(self.cut, caller.connection, record, ask.modelname)
        model = self.dispatcher.registry.name(ask.modelname)
        try:
            turn = self.admission.calls.enter(model, deadline, caller, cut)
        finally:
            waited(record)
        with turn:
            prepared = self.prepared(ask, envelope, deadline, record)
            chosen = accepted(envelope.accept, offers(prepared.ask, prepared.client))
            result = prepared.result()
            if chosen == JSON:
                response = json_answer(self.dispatcher.answer(ask, result))
            elif chosen == NPY and isinstance(result, TensorResult):
                response = Response(result.npy(), mimetype=NPY)
            else:
                response = Response(prepared.drawn(result, chosen), mimetype=chosen)
        return with_attributes(response, prepared)

    def cut(self, connection: socket.socket, record: Record, modelname: str) -> None:
        """Answer in the place of a thread that does not come back in time."""
        answer_late(connection, record, modelname)
        record.name(modelname)
        self.observer.cut(record, *errors.ANSWERS[DeadlineExceeded])

    def payloads(self, ask: Ask, envelope: Envelope) -> Response:
        """Answer an ask with a list of payloads, a batch at a time."""
        g.record.modelname = ask.modelname
        stream = as_lines(envelope)

        def answer(job: Job) -> Response:
            prepared = self.prepared(ask, envelope, job.budget.deadline(), g.record)
            batches = self.dispatcher.batches(prepared, job)
            # The first batch before the first byte: until then an error has its own status.
            first = next(batches)
            if stream:
                encoded(first)
                items = self.observer.items(results(first, batches, ask.modelname), g.record)
                return lines_answer(one.text for one in items)
            result = list(itertools.chain(first, *batches))
            return with_attributes(json_answer(self.dispatcher.answer(ask, result)), prepared)

        return self.as_job(ask.modelname, envelope, answer, stream=stream)

    def several(self, asked: SeveralModels | MixedList, envelope: Envelope) -> Response:
        """Answer several asks, each with its own status."""
        stream = as_lines(envelope)

        def answer(job: Job) -> Response:
            if isinstance(asked, SeveralModels):
                results = self.dispatcher.by_name(asked.asks, envelope, job)
                if stream:
                    results = {name: {"modelname": name, **one} for name, one in results.items()}
                made = (item(one, name) for name, one in results.items())
                each = list(self.observer.items(made, g.record))
                return lines_answer(one.text for one in each) if stream else results_by_name(each)
            items = self.items(asked.asks, envelope, job)
            return lines_answer(one.text for one in items) if stream else results_answer(items)

        return self.as_job(first_model(asked.asks), envelope, answer, stream=stream)

    def lines(self, envelope: Envelope) -> Response:
        """Answer a body that has an ask on each line, with a line for each."""
        form = accepted_for_lines(envelope.accept)
        asks = read_lines(spooled(request.stream), envelope, self.settings.max_batch)
        first = list(itertools.islice(asks, 1))

        def answer(job: Job) -> Response:
            items = self.items(itertools.chain(first, asks), envelope, job)
            return lines_answer((one.text for one in items), form)

        return self.as_job(first_model(first), envelope, answer, stream=True)

    def as_job(
        self, model: str, envelope: Envelope, answer: Callable[[Job], Response], *, stream: bool
    ) -> Response:
        """Answer with several calls, in a turn that lasts until all is sent."""
        budget = self.budget(envelope, g.record, stream=stream)
        name = self.dispatcher.registry.name(model)
        try:
            turn = self.admission.jobs.enter(name, budget.deadline(), g.caller)
        finally:
            waited(g.record)
        if stream and g.caller.connection:
            # Whoever reads too slowly is not waited for.
            turn.deadline = budget.ends + self.settings.client_timeout
            turn.cut = partial(hang_up, g.caller.connection)
        with ExitStack() as until_sent:
            until_sent.enter_context(turn)
            response = answer(Job(budget, g.caller))
            until_sent.pop_all()
        response.call_on_close(partial(ended, turn))
        return response

    def prepared(self, ask: Ask, envelope: Envelope, deadline: float, record: Record) -> Prepared:
        """Check an ask, whose model alone the request asks."""
        record.version = ask.modelversion
        record.timings = Timings()
        prepared = self.dispatcher.prepare(ask, envelope, deadline, timings=record.timings)
        record.known = True
        return prepared

    def items(
        self, asks: Iterable[Ask | Exception], envelope: Envelope, job: Job
    ) -> Iterator[Item]:
        """Yield an answer per ask, each with its own status."""
        made = map(item, self.dispatcher.items(asks, envelope, job))
        return self.observer.items(made, g.record)

    def budget(self, envelope: Envelope, record: Record, *, stream: bool = False) -> Budget:
        """Return the time for a request, which began when NGINX had all of it."""
        each = min(self.settings.client_timeout, envelope.timeout)
        return Budget(record.since + (self.settings.stream_timeout if stream else each), each)


def waited(record: Record) -> None:
    """Note that it is this request's turn, or that it waits no longer."""
    record.queue = time.monotonic() - record.since


def ended(turn: Turn) -> None:
    """Give back the turn of a job whose answer was sent, or cut off."""
    with suppress(DeadlineExceeded):
        turn.release()


def as_lines(envelope: Envelope) -> bool:
    return accepted(envelope.accept, (JSON, LINES)) == LINES


def first_model(asks: Sequence[Ask | InferenceError]) -> str:
    """Return the model with which a request for several is counted."""
    return next((ask.modelname for ask in asks if isinstance(ask, Ask)), "")


def results(first: list[Any], batches: Iterator[list[Any]], modelname: str) -> Iterator[Item]:
    """Yield the results of a list; an error that comes later is the last one.

    Raises:
        CallerGone: nobody reads them.

    """
    try:
        for batch in itertools.chain([first], batches):
            for result in batch:
                yield Item(*encoded(result), modelname, OK)
    except CallerGone:
        raise
    except Exception as error:
        yield item(errors.item(error, modelname), modelname)


def with_attributes(response: Response, prepared: Prepared) -> Response:
    """Add the custom attributes that the client set."""
    if attributes := prepared.request.response_attributes:
        response.headers[ATTRIBUTES] = written_attributes(attributes)
    return response
