"""The OpenAPI 3.1 document, made from the same tables that the code runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clients.base import Client
from clients.plugins.registry import Registry
from clients.tensors.client import has_example
from dispatcher import version
from dispatcher.auth.authorization import HEADER
from dispatcher.codecs.content_types import LINES as LINE_TYPES
from dispatcher.codecs.metadata import ATTRIBUTES, TARGET_MODEL
from dispatcher.codecs.responses import DRAWN, JSON, LINES, NPY
from dispatcher.errors import ANSWERS, LONGEST_ORIGINAL, ROUTING, SERVICE_STATUS
from dispatcher.model_control.listing import PRECISIONS, RUNTIMES
from dispatcher.settings import Settings

METRICS = "text/plain"

Schema = dict[str, Any]

REASONS: Mapping[int, str] = {
    400: "The request is wrong; the message says which part, the hint what was expected.",
    401: "There are API keys, and the request has none of them.",
    403: "The API key is for something else, or models cannot be managed here.",
    404: "There is no such model, version or path; the hint lists what is served.",
    405: "The path does not take this method.",
    406: "The answer cannot be given in any type that is accepted.",
    408: "The request came too slowly, and was cut off: nobody sees this but the log (NGINX).",
    409: "There is a model of this name.",
    413: "The body is larger than the limit.",
    414: "The address is too long (NGINX).",
    429: "As many requests wait as may; try again after Retry-After seconds.",
    499: "The caller has left before it was answered: nobody sees this but the log.",
    415: "The body is of a type that is not taken.",
    500: "A bug in a client; the log has the traceback under the request's id.",
    501: "The method or the transfer encoding is not known (NGINX).",
    502: "The model was run and failed.",
    503: "Triton, the model or the web worker is not ready; try again after Retry-After seconds.",
    504: "The time for the request is used up.",
    507: "There is no memory: for another model, or in /dev/shm for one item of this size.",
}
UNREAD = (400, 405, 408, 414, 501)
OPEN_ROUTE = (400, 404, 405, 408, 413, 414, 500, 501, 503, 504)
ANY_ROUTE = (*OPEN_ROUTE, 401, 403)
IN_TURN = (*ANY_ROUTE, 429, 499, 502)  # those that wait for a turn, and ask Triton
ASKING = (*IN_TURN, 406, 415, 507)

NAME: Schema = {"type": "string", "minLength": 1}
VERSION: Schema = {
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        {"type": "string", "pattern": "^[1-9][0-9]{0,18}$"},
    ]
}


NAMES: Schema = {"type": "array", "items": NAME}
REASONS_BY: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
RELOADED: Schema = {
    "type": "object",
    "required": ["taken", "removed", "broken", "absent"],
    "properties": {"taken": NAMES, "removed": NAMES, "broken": REASONS_BY, "absent": REASONS_BY},
}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def document(settings: Settings, registry: Registry) -> Schema:
    """Return the document for a container with these settings and clients."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "triton-dispatcher",
            "version": version.VERSION,
            "description": "Many models behind one endpoint. Which model is asked: the path, then "
            "the body's `modelname`, then the custom attributes, the target model, the query, and "
            "last the default of the settings.",
        },
        "paths": paths(settings, registry),
        "components": {
            "schemas": schemas(settings),
            "headers": headers(),
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": HEADER}},
        },
        "security": [{"key": []}] if settings.api_keys_file else [],
    }


def paths(settings: Settings, registry: Registry) -> Schema:
    model = [in_path("model")]
    said = [*outside_names(), *declared(registry)]
    beside = [*model, *(one for one in said if one["name"] not in {TARGET_MODEL, "modelname"})]
    asking = {
        "requestBody": request_body(registry),
        "responses": responses(answer_content(), ASKING, "What the model answers."),
    }
    listing = responses(json_of(ref("Models")), IN_TURN, "The models that are loaded.")
    entry = json_of(ref("Model"))
    token = {"name": "next_page_token", "in": "query", "schema": {"type": "string"}}
    ping = {
        "summary": "Whether Triton and every required model are ready.",
        "responses": responses({}, OPEN_ROUTE, "All are ready. The body is empty."),
        "security": [],
    }
    return {
        "/invocations": {
            "post": {
                "summary": "Ask the model that the request names.",
                "parameters": said,
                **asking,
            }
        },
        "/endpoints/{name}/invocations": {
            "post": {
                "summary": "Ask the model that the request names, as boto3 asks an endpoint.",
                "parameters": [in_path("name"), *said],
                "requestBody": request_body(registry),
                "responses": {"200": asking["responses"]["200"], **service_errors()},
            }
        },
        "/endpoints/{name}/{call}": {
            "post": {
                "summary": "Any other call of the hosting service is refused.",
                "parameters": [in_path("name"), in_path("call")],
                "responses": service_errors(),
            }
        },
        "/infer/{model}": {
            "post": {
                "summary": "Ask the model that the path names.",
                "parameters": beside,
                **asking,
            }
        },
        "/models/{model}/invoke": {
            "post": {
                "summary": "Ask a model of a multi-model endpoint; one not loaded is 404, unread.",
                "parameters": beside,
                **asking,
            }
        },
        "/ping": {"get": ping, "post": ping},
        "/health": {
            "get": {
                "summary": "What /ping says, with the state of each model.",
                "responses": {
                    **responses(json_of(ref("Health")), ANY_ROUTE, "All are ready."),
                    "503": answered("Not ready; `reasons` says why.", json_of(ref("Health"))),
                },
            }
        },
        "/models": {
            "get": {
                "summary": "List the models that are loaded.",
                "parameters": [token],
                "responses": listing,
            },
            "post": {
                "summary": "Load the model in a folder under a name.",
                "requestBody": {"required": True, "content": json_of(ref("Load"))},
                "responses": responses(
                    json_of(ref("Loaded")), (*IN_TURN, 409, 507), "It is loaded."
                ),
            },
        },
        "/models/{model}": {
            "get": {
                "summary": "Show one model that is loaded.",
                "parameters": model,
                "responses": responses(entry, IN_TURN, "The model."),
            },
            "delete": {
                "summary": "Unload a model; its memory is given back before the answer.",
                "parameters": model,
                "responses": responses(
                    json_of({"type": "object", "properties": {"modelName": NAME}}),
                    IN_TURN,
                    "It is unloaded.",
                ),
            },
        },
        "/load_model/{model}": {
            "post": {
                "summary": "Load a model of the repository, or load it anew.",
                "parameters": model,
                "responses": responses(entry, (*IN_TURN, 507), "The model."),
            }
        },
        "/reload": {
            "post": {
                "summary": "Take up clients that are new or have changed; all workers do.",
                "responses": responses(
                    json_of(RELOADED), IN_TURN, "All work, and every worker has taken them up."
                ),
            }
        },
        "/execution-parameters": {
            "get": {
                "summary": "How a batch transform job should send its records.",
                "responses": responses(
                    json_of(
                        {
                            "type": "object",
                            "properties": {
                                "MaxConcurrentTransforms": {"type": "integer"},
                                "BatchStrategy": {"const": "SINGLE_RECORD"},
                                "MaxPayloadInMB": {"const": settings.max_payload_mb},
                            },
                        }
                    ),
                    OPEN_ROUTE,
                    "The parameters.",
                ),
                "security": [],
            }
        },
        "/metrics": {
            "get": {
                "summary": "Counts and latencies, with Triton's own, as Prometheus reads them.",
                "responses": responses(
                    {METRICS: {"schema": {"type": "string"}}}, ANY_ROUTE, "The metrics."
                ),
            }
        },
        "/openapi.json": {
            "get": {
                "summary": "This document.",
                "responses": responses(json_of({"type": "object"}), ANY_ROUTE, "It."),
            }
        },
        "/docs": {
            "get": {
                "summary": "This document, to be read by people.",
                "responses": responses(
                    {"text/html": {"schema": {"type": "string"}}}, ANY_ROUTE, "A page."
                ),
            }
        },
    }


def in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": NAME}


def outside_names() -> list[Schema]:
    """Return the ways to name a model outside of the body."""
    attributes = {
        "type": "string",
        "maxLength": 1024,
        "pattern": r"^[\x20-\x7e]*$",
        "examples": ["modelname=yolov5;confidence=0.3"],
    }
    return [
        {
            "name": ATTRIBUTES,
            "in": "header",
            "description": "Pairs of name=value, separated by ; or ,: modelname (or model_name), "
            "modelversion and parameters. What else stands there is left to the client. Text "
            "between two pairs belongs to the value before it.",
            "schema": attributes,
        },
        {"name": TARGET_MODEL, "in": "header", "schema": {"type": "string"}},
        {"name": "modelname", "in": "query", "schema": {"type": "string"}},
        {"name": "modelversion", "in": "query", "schema": {"type": "string"}},
        {
            "name": "timeout_ms",
            "in": "query",
            "description": "Milliseconds for the answer, or for each line of one that comes in "
            "lines; more than the container's own limit counts as that.",
            "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
        },
    ]


def declared(registry: Registry) -> list[Schema]:
    """Return the parameters that clients declare, as the query takes them."""
    users: dict[str, list[Client]] = {}
    for client in registry.clients.values():
        for name in client.parameters:
            users.setdefault(name, []).append(client)
    return [
        {
            "name": name,
            "in": "query",
            "description": "; ".join(
                f"{c.modelname}: {c.parameters[name].meaning}, {c.parameters[name].expected}, "
                f"{c.parameters[name].default} where it is not given"
                for c in clients
            ),
            "schema": {"type": "string"},
        }
        for name, clients in users.items()
    ]


def request_body(registry: Registry) -> Schema:
    examples = {
        name: {"value": {"modelname": name, "payload": client.example}}
        for name, client in registry.clients.items()
        if has_example(client)
    }
    binary: Schema = {"schema": {"type": "string", "format": "binary"}}
    return {
        "required": True,
        "content": {
            JSON: {"schema": ref("Body"), "examples": examples},
            "image/jpeg": binary,
            "image/png": binary,
            "image/webp": binary,
            "image/bmp": binary,
            "image/gif": binary,
            "application/octet-stream": binary,
            "application/x-image": binary,
            "text/plain": {"schema": {"type": "string"}},
            "multipart/form-data": {"schema": ref("Form")},
            NPY: binary,
            **{one: {"schema": {"type": "string"}} for one in sorted(LINE_TYPES)},
        },
    }


def answer_content() -> Schema:
    binary: Schema = {"schema": {"type": "string", "format": "binary"}}
    return {
        JSON: {"schema": ref("Answer")},
        LINES: {"schema": {"type": "string"}},
        NPY: binary,
        **dict.fromkeys(DRAWN, binary),
    }


def json_of(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}}


def answered(description: str, content: Schema) -> Schema:
    answer: Schema = {
        "description": description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers()},
    }
    if content:
        answer["content"] = content
    return answer


def responses(content: Schema, errors: Sequence[int], description: str) -> Schema:
    """Return what a route answers: 200 with `content`, and the errors it may give."""
    return {
        "200": answered(description, content),
        **{
            str(status): answered(REASONS[status], json_of(ref("Error")))
            for status in sorted(set(errors))
        },
    }


def service_errors() -> Schema:
    """Return the errors of the hosting service's own paths; NGINX may refuse a line unread."""
    return {
        **{str(status): answered(REASONS[status], json_of(ref("Error"))) for status in UNREAD},
        str(SERVICE_STATUS): answered(
            "Any error, as the hosting service passes it on (X-Amzn-ErrorType: ModelError).",
            json_of(ref("ModelError")),
        ),
    }


def headers() -> Schema:
    return {
        "X-Request-Id": {
            "description": "The caller's own (X-Amzn-SageMaker-Inference-Id, X-Request-Id), or new",
            "schema": {"type": "string"},
        },
        "Server-Timing": {
            "description": "Milliseconds of queue, decode, inference and postprocess",
            "schema": {"type": "string"},
        },
    }


def schemas(settings: Settings) -> Schema:
    codes = sorted({code for _, code in ANSWERS.values()} | {c for c, _ in ROUTING.values()})
    most = settings.max_batch
    payload = {"type": "object", "description": "What the model's client takes."}
    one: Schema = {
        "type": "object",
        "properties": {
            "modelname": NAME,
            "modelversion": VERSION,
            "payload": {
                "oneOf": [
                    payload,
                    {"type": "array", "items": payload, "minItems": 1, "maxItems": most},
                ]
            },
            "parameters": {"type": "object"},
        },
        "required": ["payload"],
        "additionalProperties": False,
    }
    names = {"type": "array", "items": NAME, "minItems": 1, "maxItems": most, "uniqueItems": True}
    tensor = {
        "type": "object",
        "properties": {
            "name": NAME,
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"type": "string"},
            "data": {"type": "array"},
        },
        "required": ["name", "shape", "datatype", "data"],
    }
    return {
        "Body": {"anyOf": [ref("Request"), ref("SeveralModels"), ref("Requests"), ref("Tensors")]},
        "Request": one,
        "SeveralModels": {
            **one,
            "properties": {**one["properties"], "modelname": names},
            "required": ["modelname", "payload"],
        },
        "Requests": {
            "type": "object",
            "properties": {
                "requests": {
                    "type": "array",
                    "items": {"anyOf": [ref("Request"), ref("Tensors")]},
                    "minItems": 1,
                    "maxItems": most,
                }
            },
            "required": ["requests"],
            "additionalProperties": False,
        },
        "Tensors": {
            "type": "object",
            "description": "The Open Inference Protocol's request, version 2.",
            "properties": {
                "modelname": NAME,
                "modelversion": VERSION,
                "id": {"type": "string"},
                "inputs": {"type": "array", "items": tensor, "minItems": 1},
                "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            },
            "required": ["inputs"],
        },
        "Form": {
            "type": "object",
            "properties": {
                "files": {
                    "type": "array",
                    "items": {"type": "string", "format": "binary"},
                    "maxItems": most,
                },
                "modelname": NAME,
                "modelversion": {"type": "string"},
                "parameters": {"type": "string", "description": "A JSON object."},
            },
            "required": ["files"],
        },
        "Answer": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "modelname": NAME,
                        "modelversion": {"type": "string"},
                        "result": {},
                    },
                    "required": ["modelname", "result"],
                },
                {
                    "type": "object",
                    "properties": {"results": {"type": ["array", "object"]}},
                    "required": ["results"],
                },
                {
                    "type": "object",
                    "properties": {
                        "model_name": NAME,
                        "outputs": {"type": "array", "items": tensor},
                    },
                    "required": ["model_name", "outputs"],
                },
            ]
        },
        "Load": {
            "type": "object",
            "properties": {
                "model_name": {"type": "string", "minLength": 1},
                "url": {"type": "string", "minLength": 1, "description": "An absolute folder."},
            },
            "required": ["model_name", "url"],
        },
        "Loaded": {
            "type": "object",
            "properties": {"modelName": NAME, "modelUrl": {"type": "string"}},
            "required": ["modelName", "modelUrl"],
        },
        "Model": {
            "type": "object",
            "properties": {
                "modelName": NAME,
                "modelUrl": {"type": "string"},
                "version": {"type": "string"},
                "state": {"enum": ["READY", "LOADING", "UNLOADING"]},
                "client": {"type": ["string", "null"]},
                "aliases": {"type": "array", "items": NAME},
                "weights": {"type": "string"},
                "parameters": {"type": "object"},
                "example": {"type": ["object", "null"]},
                "batching": {"type": ["object", "null"]},
                "engine": {
                    "enum": sorted(RUNTIMES),
                    "description": "What runs it on the CPU; not said of a GPU, nor of backends "
                    "that are not this project's.",
                },
                "precision": {"enum": sorted(PRECISIONS)},
                "speedup": {
                    "type": "number",
                    "description": "How many times as fast a run was in a trial as by ONNX Runtime "
                    "in f32; left out where nobody measured.",
                },
                "difference": {
                    "type": "string",
                    "description": "The worst difference from its answers on samples.",
                },
                "engine_reason": {"type": "string", "description": "Why this engine, if known."},
            },
            "required": ["modelName", "modelUrl"],
        },
        "Models": {
            "type": "object",
            "properties": {
                "models": {"type": "array", "items": ref("Model")},
                "nextPageToken": {"type": "string"},
            },
            "required": ["models"],
        },
        "Health": {
            "type": "object",
            "properties": {
                "ready": {"type": "boolean"},
                "reasons": {"type": "array", "items": {"type": "string"}},
                "models": {"type": "array", "items": {"type": "object"}},
                "disabled": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["ready", "reasons", "models", "disabled"],
        },
        "ModelError": {
            "type": "object",
            "properties": {
                "Message": {"type": "string"},
                "OriginalStatusCode": {"type": "integer", "minimum": 400},
                "OriginalMessage": {"type": "string", "maxLength": LONGEST_ORIGINAL},
                "LogStreamArn": {"const": ""},
            },
            "required": ["Message", "OriginalStatusCode", "OriginalMessage", "LogStreamArn"],
        },
        "Error": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {
                        "code": {"enum": [*codes, "not_ready"]},
                        "message": {"type": "string"},
                        "hint": {"type": "string"},
                        "modelname": {"type": "string"},
                        "request_id": {"type": "string"},
                    },
                    "required": ["code", "message", "hint", "request_id"],
                }
            },
            "required": ["error"],
        },
    }
