"""`GET /openapi.json`: the file beside this one, with a few places filled in.

In the file "@max_batch" and the like are replaced by values of this container, and "@errors" among
the responses of a route by the error responses that a group of routes has in common.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from flask import Blueprint, Response

from clients.base import Client
from clients.plugins.registry import Registry
from clients.tensors.client import examples_of
from dispatcher.codecs.error_responses import SERVICE_STATUS
from dispatcher.codecs.json_request import MAX_BATCH
from dispatcher.codecs.responses import json_response
from dispatcher.errors import ANSWERS, NOT_READY, ROUTING
from dispatcher.settings import Settings
from dispatcher.version import VERSION

TEMPLATE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

PUBLIC = (400, 404, 405, 408, 413, 414, 500, 501, 503, 504)
ANY = (*PUBLIC, 401, 403)
WAITING = (*ANY, 429, 499, 502)  # for a slot, and for Triton
ERRORS: Mapping[str, tuple[int, ...]] = {
    "public": PUBLIC,
    "any": ANY,
    "management": WAITING,
    "rollout": (*ANY, 507),
    "load": (*WAITING, 409, 507),
    "load_own": (*WAITING, 507),
    "inference": (*WAITING, 406, 409, 410, 415, 507),
    # NGINX refuses the first ones itself, before it knows the path.
    "hosting_service": (400, 405, 408, 414, 501, SERVICE_STATUS),
}


def openapi_routes(settings: Settings, registry: Registry) -> Blueprint:
    """Make the route of the document."""
    routes = Blueprint("pages", __name__)

    @routes.get("/openapi.json")
    def openapi() -> Response:
        """Describe all routes in OpenAPI 3.1."""
        return json_response(document(settings, registry))

    return routes


def document(settings: Settings, registry: Registry) -> dict[str, Any]:
    """Return the document for a container with these settings and clients."""
    codes = {code for _, code in ANSWERS.values()} | {code for code, _ in ROUTING.values()}
    values = {
        "@version": VERSION,
        "@security": [{"key": []}, {"bearer": []}] if settings.api_keys_file else [],
        "@max_batch": MAX_BATCH,
        "@max_payload_mb": settings.max_payload_mb,
        "@error_codes": [*sorted(codes), NOT_READY],
        "@examples": examples(registry),
        "@texts": texts(registry),
        "@parameters": parameters(registry),
    }
    filled: dict[str, Any] = fill_in(TEMPLATE, values)
    headers = {name: reference("headers", name) for name in filled["components"]["headers"]}
    for response in responses(filled):
        if "$ref" not in response:
            response["headers"] = headers
    return filled


def examples(registry: Registry) -> dict[str, Any]:
    """Return each client's requests."""
    return {
        number_name(name, place): {"value": {"modelname": name, "payload": payload}}
        for name, client in registry.clients.items()
        for place, payload in enumerate(examples_of(client), start=1)
    }


def texts(registry: Registry) -> dict[str, Any]:
    """Return the text of each example that has one."""
    return {
        number_name(name, place): {"value": text}
        for name, client in registry.clients.items()
        if (field := client.media.get("text"))
        for place, payload in enumerate(examples_of(client), start=1)
        if isinstance(payload, Mapping) and isinstance(text := payload.get(field), str)
    }


def number_name(name: str, place: int) -> str:
    return name if place == 1 else f"{name} {place}"


def parameters(registry: Registry) -> list[dict[str, Any]]:
    """Describe the parameters that clients declare, as query parameters."""
    users: dict[str, list[Client]] = {}
    for client in registry.clients.values():
        for name in client.parameters:
            users.setdefault(name, []).append(client)
    return [
        {
            "name": name,
            "in": "query",
            "description": "; ".join(
                # Descriptions are Markdown, in which HTML is HTML.
                escape(f"{c.modelname}: {one.meaning}, {one.expected}, {one.default} by default")
                for c in clients
                for one in [c.parameters[name]]
            ),
            "schema": {"type": "string"},
        }
        for name, clients in users.items()
    ]


def fill_in(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a part of the template with values in its places.

    In a list a place is replaced by all elements of its value.
    """
    if isinstance(node, dict):
        filled = {key: fill_in(one, values) for key, one in node.items() if key != "@errors"}
        for status in sorted(ERRORS[node["@errors"]]) if "@errors" in node else ():
            filled.setdefault(str(status), reference("responses", str(status)))
        return filled
    if isinstance(node, list):
        return [
            one
            for element in node
            for one in (
                values[element]
                if isinstance(element, str) and element in values
                else [fill_in(element, values)]
            )
        ]
    return values.get(node, node) if isinstance(node, str) else node


def reference(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


def responses(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all responses: those of routes, and those that routes refer to."""
    routes = [route for methods in document["paths"].values() for route in methods.values()]
    shared = document["components"]["responses"].values()
    return [*shared, *(one for route in routes for one in route["responses"].values())]
