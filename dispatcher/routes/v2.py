"""Triton's own protocol over HTTP (V2).

Tensors are checked as on the other routes, and go the same way; documents come from Triton's HTTP.
What goes through here has the keys, limits, deadlines, log and metrics of the other routes. Models
are loaded and unloaded as by `POST /load_model` and `DELETE /models`. Shared memory, traces and
Triton's log settings cannot be reached.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flask import Blueprint, Response, g, request

from clients.errors import ModelUnavailable, TensorsRefused
from clients.tensors.quoting import brief
from dispatcher.codecs.content_types import decompress_body
from dispatcher.codecs.json_request import parse_object, parse_version
from dispatcher.codecs.metadata import Metadata
from dispatcher.codecs.responses import JSON, json_response
from dispatcher.errors import BadBody
from dispatcher.execution.admission import Admission
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.models.control import ModelControl
from dispatcher.routes.inference import InferenceHandler
from dispatcher.routes.models import change_model, limit_concurrency, ready_or_not
from dispatcher.settings import Settings
from dispatcher.status.status import Readiness
from dispatcher.v2.binary_tensors import read_fields
from dispatcher.v2.connection import TritonHttp, path_of

# Triton's names for those of its extensions that are not passed on.
CLOSED: Final = frozenset(
    {
        "system_shared_memory",
        "cuda_shared_memory",
        "model_repository(unload_dependents)",
        "trace",
        "logging",
    }
)


def inference_of_v2(
    settings: Settings, inference: InferenceHandler, readiness: Readiness
) -> Blueprint:
    """Return the routes that run models by Triton's protocol, and those of health."""
    routes = Blueprint("v2", __name__)

    @routes.get("/v2/health/live")
    def live() -> Response:
        """Answer 200; Triton itself is restarted where it does not answer."""
        return Response(status=200)

    @routes.get("/v2/health/ready")
    def ready() -> Response:
        """Answer as /ping."""
        return ready_or_not(readiness)

    @routes.post("/v2/models/<model>/infer")
    @routes.post("/v2/models/<model>/versions/<version>/infer")
    def infer(model: str, version: str = "") -> Response:
        """Run a model on tensors, in JSON or in binary."""
        return inference.tensors(read(model, version))

    @routes.post("/v2/models/<model>/generate")
    @routes.post("/v2/models/<model>/versions/<version>/generate")
    def generate(model: str, version: str = "") -> Response:
        """Run a model on the fields of a JSON object, each an input; it gives one answer."""
        return inference.tensors(read(model, version), read_fields)

    @routes.post("/v2/models/<model>/generate_stream")
    @routes.post("/v2/models/<model>/versions/<version>/generate_stream")
    def generate_stream(model: str, version: str = "") -> Response:
        """Run a model as `generate`; it gives any number of answers, each an event."""
        return inference.tensors(read(model, version), read_fields, stream=True)

    def read(model: str, version: str) -> Metadata:
        decompress_body(request, settings.max_body, inference.admission.bodies)
        return replace(inference.read_metadata(model), modelversion=version)

    return routes


def models_of_v2(
    settings: Settings, lookup: ModelLookup, control: ModelControl, admission: Admission
) -> Blueprint:
    """Return the routes that describe, load and unload models by Triton's protocol."""
    routes, triton = Blueprint("v2_models", __name__), TritonHttp(settings)
    limit_concurrency(routes, admission.management, settings.managing_wait, control.reloader.news)

    @routes.get("/v2")
    def server_metadata() -> Response:
        """Describe the server; of its extensions those that are passed on."""
        described = json.loads(triton.call("GET", "/v2"))
        described["extensions"] = [e for e in described["extensions"] if e not in CLOSED]
        return json_response(described)

    @routes.get("/v2/models/stats")
    def all_statistics() -> Response:
        return Response(triton.call("GET", "/v2/models/stats"), mimetype=JSON)

    @routes.get("/v2/models/<model>/ready")
    @routes.get("/v2/models/<model>/versions/<version>/ready")
    def model_ready(model: str, version: str = "") -> Response:
        g.record.modelname = model
        g.record.version = parse_version(version or None)
        # `infer` asks for these first, by gRPC, which may come up later than HTTP.
        found = lookup.client(model).served_by
        g.record.known = True
        timeout = settings.client_timeout
        lookup.environment.server.signature(found, g.record.version, timeout=timeout)
        try:
            return described(model, version, what="/ready")
        except TensorsRefused as error:  # Triton says 400 and no more
            raise ModelUnavailable(
                f"the model {brief(model)} is not ready", hint="GET /models says why"
            ) from error

    @routes.post("/v2/repository/index")
    def index() -> Response:
        only_ready = request_document().get("ready") is True
        body = json.dumps({"ready": only_ready}).encode()
        return Response(triton.call("POST", "/v2/repository/index", body), mimetype=JSON)

    @routes.post("/v2/repository/models/<model>/load")
    def load(model: str) -> Response:
        """Load or reload a model of the repository, as POST /load_model."""
        refuse_parameters()
        change_model(control, model, control.load_own)
        return Response(status=200)

    @routes.post("/v2/repository/models/<model>/unload")
    def unload(model: str) -> Response:
        """Unload a model, as DELETE /models."""
        refuse_parameters()
        change_model(control, model, control.unload)
        return Response(status=200)

    def described(model: str, version: str = "", *, what: str) -> Response:
        g.record.modelname = model
        g.record.version = parse_version(version or None)
        until = None if what == "/ready" else g.record.since + settings.client_timeout
        found = lookup.find(model, until).served_by
        g.record.known = True
        path = path_of(found, g.record.version)
        return Response(triton.call("GET", path + what), mimetype=JSON)

    for what in ("", "/config", "/stats"):  # a model's tensors; its configuration; how it went
        view = partial(described, what=what)
        routes.add_url_rule(f"/v2/models/<model>{what}", f"model{what}", view)
        routes.add_url_rule(f"/v2/models/<model>/versions/<version>{what}", f"model{what}", view)
    return routes


def request_document() -> dict[str, Any]:
    """Return the JSON object in the current request's body; an empty one without a body."""
    body = request.get_data()
    return parse_object(body, hint="expected a JSON object, or no body") if body else {}


def refuse_parameters() -> None:
    """Refuse parameters of a load or unload: a restart of Triton would lose what they change."""
    parameters = request_document().get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadBody(f"`parameters` is {brief(parameters)}", hint="expected an object, or none")
    if given := [name for name, value in parameters.items() if value]:
        by_itself = "each model is unloaded by itself"
        why = by_itself if given[0] == "unload_dependents" else "a restart would lose it"
        raise BadBody(
            f"`parameters` has {brief(given[0])}, which is not taken: {why}",
            hint="edit the model's folder, then load the model; unload each model by itself",
        )
