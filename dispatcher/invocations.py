"""The routes that ask models."""

from __future__ import annotations

import time

from flask import Blueprint, Response, g, request

from clients.errors import UnknownModel
from clients.request import Timings
from clients.tensors import TensorResult
from dispatcher.admission import Admission
from dispatcher.answers import (
    JSON,
    LINES,
    NPY,
    accepted,
    json_answer,
    lines_answer,
    offers,
)
from dispatcher.ask import Asked, MixedList, One
from dispatcher.bodies import LINES as LINE_TYPES
from dispatcher.bodies import read_body, unpack
from dispatcher.dispatch import Dispatcher, Prepared
from dispatcher.encoding import encoded
from dispatcher.envelope import ATTRIBUTES, Envelope, read_envelope, written_attributes
from dispatcher.lines import read_lines, spooled
from dispatcher.settings import Settings


def invocation_routes(
    settings: Settings, dispatcher: Dispatcher, admission: Admission
) -> Blueprint:
    """Return `/invocations` and its kin."""
    routes = Blueprint("invocations", __name__)
    invocation = Invocation(settings, dispatcher, admission)

    @routes.post("/invocations")
    def invocations() -> Response:
        """Ask the model that the request names."""
        return invocation.answer("")

    @routes.post("/infer/<model>")
    def infer(model: str) -> Response:
        """Ask the model that the path names."""
        return invocation.answer(model)

    @routes.post("/models/<model>/invoke")
    def invoke(model: str) -> Response:
        """Ask a model of a multi-model endpoint; one that is not loaded is 404, unread."""
        if model not in dispatcher.served():
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

    """

    def __init__(self, settings: Settings, dispatcher: Dispatcher, admission: Admission) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self.admission = admission

    def answer(self, path_model: str) -> Response:
        """Answer when it is this request's turn; the turn lasts until all is sent."""
        leave = self.admission.enter(self.settings.client_timeout)
        g.queue += time.monotonic() - g.started
        try:
            response = self.admitted(path_model)
        except BaseException:
            leave()
            raise
        response.call_on_close(leave)
        return response

    def admitted(self, path_model: str) -> Response:
        """Read the request by its type, and answer."""
        lines = request.mimetype in LINE_TYPES
        envelope = read_envelope(
            request.headers,
            request.args,
            path_model=path_model,
            default_model=self.settings.default_model,
            request_id=g.request_id,
            # Each line of a batch job has a time of its own.
            deadline=0.0 if lines else g.started + self.settings.client_timeout,
        )
        g.modelname = envelope.modelname(None)
        unpack(request, self.settings.max_body)
        accept = request.headers.get("Accept", "")
        if lines:
            accepted(accept, (LINES,))
            asks = read_lines(spooled(request.stream), envelope, self.settings.max_batch)
            return lines_answer(self.dispatcher.items(asks, envelope))
        asked = read_body(request, envelope, self.settings)
        if isinstance(asked, One):
            return self.one(asked, envelope, accept)
        return self.several(asked, envelope, accept)

    def one(self, asked: One, envelope: Envelope, accept: str) -> Response:
        """Answer one ask, as the caller accepts it."""
        g.timings = Timings()
        g.modelname = asked.ask.modelname
        prepared = self.dispatcher.prepare(asked.ask, envelope, timings=g.timings)
        chosen = accepted(accept, offers(prepared.ask, prepared.client))
        if chosen == LINES:
            return line_per_result(prepared)
        result = prepared.result()
        if chosen == JSON:
            response = json_answer(self.dispatcher.answer(prepared.ask, result))
        elif chosen == NPY and isinstance(result, TensorResult):
            response = Response(result.npy(), mimetype=NPY)
        else:
            response = Response(prepared.drawn(result, chosen), mimetype=chosen)
        if attributes := prepared.request.response_attributes:
            response.headers[ATTRIBUTES] = written_attributes(attributes)
        return response

    def several(self, asked: Asked, envelope: Envelope, accept: str) -> Response:
        """Answer several asks, each with its own status."""
        as_lines = accepted(accept, (JSON, LINES)) == LINES
        if isinstance(asked, MixedList):
            items = self.dispatcher.items(asked.asks, envelope)
            return lines_answer(items) if as_lines else json_answer({"results": list(items)})
        asks = [asked.ask] if isinstance(asked, One) else asked.asks
        results = self.dispatcher.by_name(asks, envelope)
        if as_lines:
            return lines_answer({"modelname": name, **one} for name, one in results.items())
        return json_answer({"results": results})


def line_per_result(prepared: Prepared) -> Response:
    """Answer a list with a line per payload, sent as their batches are done."""
    # The first batch before the first byte: until then an error can have its own status.
    batches = prepared.batches()
    first = next(batches)
    encoded(first)
    rest = (result for batch in batches for result in batch)
    return lines_answer(result for part in (first, rest) for result in part)
