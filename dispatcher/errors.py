"""One table from errors to HTTP, and one body for every answer that is not 200.

{"error": {"code": "unknown_model", "message": "…", "hint": "…"}}
"""

from __future__ import annotations

import logging
from typing import Final

from flask import Flask, Response, jsonify
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from clients.errors import (
    BadParameter,
    BadPayload,
    BadRequest,
    DeadlineExceeded,
    InferenceError,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
)

log = logging.getLogger(__name__)


class BadBody(BadRequest):
    """The body of the request is not what the endpoint takes."""


class ClientDisabled(ModelUnavailable):
    """The model's client class could not be loaded when the container started."""


# A class that is not here is answered as the nearest of its bases that is.
ANSWERS: Final[dict[type[InferenceError], tuple[int, str]]] = {
    BadRequest: (400, "bad_request"),
    BadBody: (400, "bad_body"),
    BadPayload: (400, "bad_payload"),
    BadParameter: (400, "bad_parameter"),
    TensorsRefused: (400, "tensors_refused"),
    UnknownModel: (404, "unknown_model"),
    UnknownVersion: (404, "unknown_version"),
    InferenceError: (500, "client_failed"),
    ModelFailed: (502, "model_failed"),
    TooLargeAtOnce: (507, "too_large_at_once"),
    ModelUnavailable: (503, "model_unavailable"),
    ClientDisabled: (503, "client_disabled"),
    DeadlineExceeded: (504, "deadline_exceeded"),
}

RETRY_AFTER_S: Final = 5  # a model that is loading is asked for again after this


def answer(status: int, code: str, message: str, hint: str = "") -> Response:
    """Return the answer for an error."""
    response = jsonify(error={"code": code, "message": message, "hint": hint})
    response.status_code = status
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def of_inference(error: InferenceError) -> Response:
    """Answer an error of the contract, or a plugin's subclass of one."""
    status, code = next(ANSWERS[kind] for kind in type(error).__mro__ if kind in ANSWERS)
    return answer(status, code, error.message, error.hint)


def of_routing(error: HTTPException) -> Response:
    """Answer what Flask itself refuses: 404, 405, 413."""
    status = error.code or 500
    hint = {
        404: "POST /invocations asks a model, GET /ping says whether all are ready",
        405: f"this path takes {', '.join(sorted(getattr(error, 'valid_methods', None) or ()))}",
        413: "send fewer items, or smaller pictures",
    }.get(status, "")
    response = answer(
        status, error.name.lower().replace(" ", "_"), error.description or error.name, hint
    )
    # What the protocol wants beside the body, such as Allow with 405.
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


def of_bug(error: Exception) -> Response:
    """Answer what nobody foresaw: a constant text, and the traceback in the log."""
    log.error("unforeseen error", exc_info=error)
    return answer(
        500,
        "internal_error",
        "the model's client failed in a way it does not explain",
        "the log of the container has the traceback",
    )


def too_large(limit_mb: int) -> RequestEntityTooLarge:
    """Return the refusal of a body over the limit."""
    return RequestEntityTooLarge(f"the body is larger than {limit_mb} MiB")


def register(app: Flask) -> None:
    """Make `app` answer every error in this one shape."""
    app.register_error_handler(InferenceError, of_inference)
    app.register_error_handler(HTTPException, of_routing)
    app.register_error_handler(Exception, of_bug)
