"""The routes that ask models."""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from clients.base import Timings
from clients.errors import UnknownModel
from clients.tensors import TensorResult
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
from dispatcher.envelope import ATTRIBUTES, Envelope, read_envelope, written_attributes
from dispatcher.lines import read_lines, spooled
from dispatcher.settings import Settings


def invocation_routes(  # noqa: C901  several small functions that share two names
    settings: Settings, dispatcher: Dispatcher
) -> Blueprint:
    """Return `/invocations` and its kin."""
    routes = Blueprint("invocations", __name__)

    @routes.post("/invocations")
    def invocations() -> Response:
        """Ask the model that the request names."""
        return answer("")

    @routes.post("/infer/<model>")
    def infer(model: str) -> Response:
        """Ask the model that the path names."""
        return answer(model)

    @routes.post("/models/<model>/invoke")
    def invoke(model: str) -> Response:
        """Ask a model of a multi-model endpoint; one that is not loaded is 404, unread."""
        if model not in dispatcher.served():
            raise UnknownModel(
                f"the model {model[:100]!r} is not loaded", hint="POST /models loads a model"
            )
        return answer(model)

    def answer(path_model: str) -> Response:
        envelope = read_envelope(
            dict(request.headers),
            request.args,
            path_model=path_model,
            default_model=settings.default_model,
            request_id=g.request_id,
        )
        g.modelname = envelope.modelname(None)
        unpack(request, settings.max_body)
        accept = request.headers.get("Accept", "")
        if request.mimetype in LINE_TYPES:
            accepted(accept, (LINES,))
            asks = read_lines(spooled(request.stream), envelope, settings.max_batch)
            return lines_answer(dispatcher.items(asks, envelope))
        return answer_to(read_body(request, envelope, settings), envelope, accept)

    def answer_to(asked: Asked, envelope: Envelope, accept: str) -> Response:
        if isinstance(asked, One):
            g.timings = Timings()
            g.modelname = asked.ask.modelname
            return one(dispatcher.prepare(asked.ask, envelope, timings=g.timings), accept)
        as_lines = accepted(accept, (JSON, LINES)) == LINES
        if isinstance(asked, MixedList):
            items = dispatcher.items(asked.asks, envelope)
            return lines_answer(items) if as_lines else json_answer({"results": list(items)})
        results = dispatcher.by_name(asked.asks, envelope)
        if as_lines:
            return lines_answer({"modelname": name, **one} for name, one in results.items())
        return json_answer({"results": results})

    def one(prepared: Prepared, accept: str) -> Response:
        chosen = accepted(accept, offers(prepared.ask, prepared.client))
        if chosen == LINES:
            # The first batch before the first byte: until then an error can have its status.
            batches = prepared.batches()
            first = next(batches)
            rest = (result for batch in batches for result in batch)
            return lines_answer(result for part in (first, rest) for result in part)
        result = prepared.result()
        if chosen == JSON:
            response = json_answer(dispatcher.answer(prepared.ask, result))
        elif chosen == NPY and isinstance(result, TensorResult):
            response = Response(result.npy(), mimetype=NPY)
        else:
            response = Response(prepared.drawn(result, chosen), mimetype=chosen)
        if attributes := prepared.request.response_attributes:
            response.headers[ATTRIBUTES] = written_attributes(attributes)
        return response

    return routes
