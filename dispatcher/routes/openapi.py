"""`GET /openapi.json`: the file beside this one, with a few places filled in.

In the file "@max_batch" and the like are replaced by values of this container, and "@errors" among
the responses of a route by the error responses that a group of routes has in common; another form
of errors, as of OpenAI's server, is named before the group. Each served model with an example has a
path of its own besides, `/infer/NAME`, with the types that its client declares.
"""

from __future__ import annotations

import inspect
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, g

from clients.annotations import json_schema
from clients.base import Client
from clients.plugins.registry import Registry
from clients.tensors.client import examples_of
from dispatcher.codecs.error_responses import SERVICE_STATUS
from dispatcher.codecs.json_request import MAX_BATCH
from dispatcher.codecs.responses import JSON, encode, text_response
from dispatcher.errors import ANSWERS, NOT_READY, ROUTING
from dispatcher.models.listing import schema
from dispatcher.settings import Settings
from dispatcher.status.status import Readiness
from dispatcher.version import VERSION

TEMPLATE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
MODEL = TEMPLATE.pop("@model")  # the route of one model, and its schemas

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

TYPING = ("type", "minimum", "maximum", "enum")  # of a parameter


def openapi_routes(settings: Settings, registry: Registry, readiness: Readiness) -> Blueprint:
    routes = Blueprint("pages", __name__)
    kept: tuple[list[Client], tuple[str, int]] | None = None

    @routes.get("/openapi.json")
    def openapi() -> Response:
        """Describe all routes in OpenAPI 3.1, with the models that can be asked now."""
        nonlocal kept
        states = [] if settings.load_on_demand else readiness.prober().models
        lacking = {one.name for one in states} - {one.name for one in states if one.ready}
        only = g.record.may_ask  # the models of the caller's key
        shown = [
            client
            for client in registry.clients.values()
            if client.served_by not in lacking and (only is None or client.modelname in only)
        ]
        found = kept  # another thread may keep that of a key with other models meanwhile
        if found is None or found[0] != shown:  # to make it takes 0.5 s for 300 models
            kept = found = shown, encode(document(settings, shown))
        return text_response(*found[1])

    return routes


def document(settings: Settings, clients: Sequence[Client]) -> dict[str, Any]:
    """Return the document for a container with these settings and clients."""
    codes = {code for _, code in ANSWERS.values()} | {code for code, _ in ROUTING.values()}
    taken = {spelled(name) for name in TEMPLATE["components"]["schemas"]}
    named = name_operations(client.modelname for client in clients)
    examples = {
        f"{named[client.modelname].removeprefix('infer_')}.{place}": {
            "value": {"modelname": client.modelname, "payload": payload}
        }
        for client in clients
        for place, payload in enumerate(examples_of(client), start=1)
    }
    values = {
        "@version": VERSION,
        "@security": [{"key": []}, {"bearer": []}] if settings.api_keys_file else [],
        "@max_batch": MAX_BATCH,
        "@max_payload_mb": settings.max_payload_mb,
        "@error_codes": [*sorted(codes), NOT_READY],
        "@examples": examples,
        "@references": {key: reference("examples", key) for key in examples},
        "@parameters": parameters(clients),
    }
    filled: dict[str, Any] = fill_in(TEMPLATE, values)
    components = filled["components"]
    for client in clients:
        # Plain tensors are sent as the route of any model says.
        if examples_of(client) or client.payload_type is not Any:
            route, schemas = describe_model(client, named[client.modelname], examples, taken)
            filled["paths"][f"/infer/{quote(client.modelname, safe='')}"] = {"post": route}
            components["schemas"] |= schemas
    errors = {status: one for status, one in components["responses"].items() if status.isdigit()}
    for form in ("OpenAI", "Triton"):
        content = {JSON: {"schema": reference("schemas", f"{form}Error")}}
        other = {f"{form}{status}": {**one, "content": content} for status, one in errors.items()}
        components["responses"] |= other
    headers = {name: reference("headers", name) for name in components["headers"]}
    of_routes = [one for route in operations(filled) for one in route["responses"].values()]
    for response in (*components["responses"].values(), *of_routes):
        if "$ref" not in response:
            response["headers"] = headers
    return filled


def name_operations(names: Iterable[str]) -> dict[str, str]:
    """Return the operationId of each model's own route, such as `infer_resnet`, in ASCII."""
    words, taken = {}, {spelled(one["operationId"]) for one in operations(TEMPLATE)}
    for name in names:
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
        words[name] = "_".join(["infer", *re.findall("[a-z0-9]+", plain)])
    # A model whose name is an identifier keeps it, but for others that are spelled alike.
    order = sorted(words, key=lambda name: (words[name] != f"infer_{name}", name))
    return {name: unused(words[name], taken) for name in order}


def unused(name: str, taken: set[str]) -> str:
    """Return a name, with a number where a generator may write another one alike."""
    found, number = name, 1
    while spelled(found) in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(spelled(found))
    return found


def spelled(name: str) -> str:
    """Return what `a_name`, `aName` and `AName` have in common."""
    return name.replace("_", "").lower()


def describe_model(
    client: Client, operation: str, examples: Mapping[str, Any], taken: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's own route, and the schemas of what its client declares, by their names."""
    prefix = operation.title().replace("_", "")
    names = {one: unused(f"{prefix}{one}", taken) for one in MODEL["schemas"]}
    types = [json_schema(one) for one in (client.payload_type, client.result_type)]
    classes = {key: one for each in types for key, one in each.pop("$defs", {}).items()}
    text = json.dumps([*types, classes])
    moved = {one: unused(prefix + re.sub(r"[^A-Za-z0-9_]", "", one), taken) for one in classes}
    for one, name in moved.items():
        text = text.replace(json.dumps(f"#/$defs/{one}"), f'"#/components/schemas/{name}"')
    payload, result, classes = json.loads(text, object_hook=with_items)
    query = parameters([client])
    values = {
        "@operation": operation,
        "@summary": f"Ask the model {client.modelname} about one payload.",
        "@answers": "" if client.is_authors else inspect.getdoc(type(client)),
        "@examples": {
            key: reference("examples", key)
            for key, one in examples.items()
            if one["value"]["modelname"] == client.modelname
        },
        "@payload": payload or {"type": "object"},
        "@result": result,
        "@query": query,
        "@parameters": {one["name"]: one["schema"] for one in query},
        **{f"@{one}": f"#/components/schemas/{name}" for one, name in names.items()},
    }
    filled: dict[str, Any] = fill_in(MODEL, values)
    if not client.media:
        del filled["route"]["requestBody"]["content"]["application/octet-stream"]
    own = {names[one]: schema for one, schema in filled["schemas"].items()}
    own |= {moved[one]: {**schema, "title": moved[one]} for one, schema in classes.items()}
    return filled["route"], own


def with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose arrays all have `items`, which generators want; msgspec omits some."""
    is_array = schema.get("type") == "array"
    return {**schema, "items": schema.get("items") or {}} if is_array else schema


def parameters(clients: Iterable[Client]) -> list[dict[str, Any]]:
    """Describe the parameters that clients declare, as query parameters.

    The type of one is what all who have it agree on. Its default is in words alone: generated
    clients would send it, or want it from their callers.
    """
    users: dict[str, list[Client]] = {}
    for client in clients:
        for name in client.parameters:
            users.setdefault(name, []).append(client)
    found = []
    for name, those in users.items():
        types = [schema(one.parameters[name]) for one in those]
        described = "; ".join(
            f"{client.modelname}: {one['meaning']}, {one['expected']}, {one['default']} by default"
            for client, one in zip(those, types, strict=True)
        )
        agreed = {
            key: value
            for key, value in types[0].items()
            if key in TYPING and all(one.get(key) == value for one in types)
        }
        # Descriptions are Markdown, in which HTML is HTML.
        one = {"name": name, "in": "query", "description": escape(described), "schema": agreed}
        found.append(one)
    return found


def fill_in(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a part of the template with values in its places.

    In a list a place is replaced by all elements of its value.
    """
    if isinstance(node, dict):
        filled = {key: fill_in(one, values) for key, one in node.items() if key != "@errors"}
        form, _, group = node.get("@errors", "").rpartition(" ")
        for status in sorted(ERRORS[group]) if group else ():
            filled.setdefault(str(status), reference("responses", f"{form}{status}"))
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


def operations(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [one for methods in document["paths"].values() for one in methods.values()]
