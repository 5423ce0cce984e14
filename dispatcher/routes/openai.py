"""The routes of OpenAI's embeddings and models, and of reranking as Cohere and TEI have it.

Models are asked as by the other routes of inference: with the same keys, limits, deadlines, slots,
batches, metrics and lines in the log. Errors have OpenAI's form (`codecs/error_responses.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any, NoReturn

from flask import Blueprint, Response, abort, g, request

from clients.errors import UnknownModel
from clients.tensors.quoting import brief
from dispatcher.codecs.content_types import decompress_body
from dispatcher.codecs.json_request import parse_version
from dispatcher.codecs.openai import NAME, Task, read_embeddings, read_ranking
from dispatcher.codecs.responses import json_response
from dispatcher.errors import BadBody
from dispatcher.execution.executor import Series
from dispatcher.execution.prepared import PreparedRequest, client_errors
from dispatcher.model_request import ModelRequest
from dispatcher.routes.inference import InferenceHandler, with_attributes

OWNER = "triton-dispatcher"


def openai_routes(inference: InferenceHandler, available: Callable[[], Iterable[str]]) -> Blueprint:
    """Return the routes; `available` are the models that are loaded when they are asked."""
    routes = Blueprint("openai", __name__)
    lookup, started = inference.executor.lookup, int(time.time())

    @routes.post("/v1/embeddings")
    def embeddings() -> Response:
        return ask(inference, read_embeddings)

    @routes.post("/v1/rerank")
    @routes.post("/v2/rerank")  # of Cohere's newer clients; Triton's protocol has no such path
    @routes.post("/rerank")
    def rerank() -> Response:
        """Answer documents in the order of how well they fit a query."""
        return ask(inference, read_ranking)

    @routes.get("/v1/models")
    def list_models() -> Response:
        return json_response({"object": "list", "data": described()})

    @routes.get("/v1/models/<model>")
    def show_model(model: str) -> Response:
        for one in described():
            if one["id"] == model:
                return json_response(one)
        hint = "GET /v1/models lists those that can be asked"
        raise UnknownModel(f"there is no model {brief(model)}", hint=hint)

    @routes.post("/v1/chat/completions")
    @routes.post("/v1/completions")
    def completions() -> NoReturn:
        """Say that no model here writes texts."""
        abort(404)

    def described() -> list[dict[str, Any]]:
        """Return the models, loaded or not, as OpenAI does, with the routes here that ask each."""
        lookup.follow()
        found: list[dict[str, Any]] = []
        only = g.record.may_ask  # the models of the caller's key
        states, clients = lookup.states(), lookup.registry.clients
        listed = {one.name for one in states}
        # A class that only asks others has no model on Triton.
        alone = {name for name, one in clients.items() if one.served_by not in listed}
        names = {*lookup.served(states), *available(), *alone}
        for name in sorted(one for one in names if only is None or one in only):
            client = clients.get(lookup.registry.name(name))
            asked_by = [
                *(["/v1/embeddings"] if client and client.embeds else []),
                *(["/v1/rerank"] if client and client.ranks() else []),
            ]
            model = {"id": name, "object": "model", "created": started, "owned_by": OWNER}
            found.append({**model, "routes": asked_by})
        return found

    return routes


def ask(inference: InferenceHandler, read: Callable[[bytes, float], Task]) -> Response:
    """Read the body of the current request, and answer with its model, batch by batch."""
    metadata = inference.read_metadata()
    limit = inference.time_limit(metadata, stream=False)
    metadata = replace(metadata, time_limit=limit, session="")
    bodies = inference.admission.bodies
    decompress_body(request, inference.max_body, bodies)
    with ExitStack() as until_answered:
        until_answered.callback(bodies.take_body(request))
        task = read(request.get_data(), limit.deadline())
        if not (model := metadata.modelname(task.model)):
            raise BadBody("`model` is missing", hint=f"expected {NAME.expected}")
        asked = ModelRequest(
            model,
            [{}],  # in whose place are the client's own, once there is a slot
            is_list=True,
            parameters=task.parameters,
            modelversion=parse_version(metadata.modelversion or None),
            place=task.place,
        )

        def answer(prepared: PreparedRequest, run: Callable[[PreparedRequest], Any]) -> Response:
            client = prepared.client
            with prepared.request.active(), client_errors:
                prepared = replace(prepared, payloads=task.payloads(client))
            results = run(prepared)
            with prepared.request.active(), client_errors:
                made = task.answer(client, results)
            if isinstance(made, dict):  # a list is TEI's
                tokens = sum(prepared.request.tokens)
                made["model"] = model
                made["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
            return with_attributes(json_response(made), prepared)

        if task.is_one:  # as a question, which should not wait for those who send many texts
            with inference.call(asked, metadata, limit.deadline()) as prepared:
                return answer(prepared, PreparedRequest.result)

        def answer_several(series: Series) -> Response:
            batches = inference.executor.batches
            prepared = inference.prepare_and_note(asked, metadata, limit.deadline())
            return answer(prepared, lambda one: list(chain.from_iterable(batches(one, series))))

        return inference.as_series(asked, metadata, answer_several, stream=False, only=True)
