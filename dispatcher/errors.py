"""One table from errors to HTTP, and one body for every answer that is not 2xx.

{"error": {"code": "unknown_model", "message": "…", "hint": "…", "modelname": "…",
           "request_id": "…"}}
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from flask import Flask, Response, g, has_request_context
from werkzeug.exceptions import ClientDisconnected, HTTPException, RequestEntityTooLarge

from clients.errors import (
    BadParameter,
    BadPayload,
    BadRequest,
    ClientDisabled,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
    UnsupportedMedia,
)
from dispatcher.codecs.json_encoding import NotJson, dumps, encoded
from dispatcher.observability.record import Record

log = logging.getLogger(__name__)


class BadBody(BadRequest):
    """The body of the request is not what the endpoint takes."""


class BadHeader(BadRequest):
    """A header of the request is not what the endpoint takes."""


class BadModel(BadRequest):
    """What a folder holds cannot be loaded as a model, or its name or address cannot be used."""


class BadClient(BadRequest):
    """A client that was to be taken up does not work; what there was before is kept."""


class UnsupportedType(BadRequest):
    """There is no reader for the body's type or packing."""


class NotAcceptable(BadRequest):
    """The answer cannot be given in any of the types that the caller accepts."""


class Unauthorized(InferenceError):
    """The request has no API key, or one that is not known."""


class WrongScope(InferenceError):
    """The request's API key is for something else."""


class ManagementOff(InferenceError):
    """The routes that change what is served are switched off."""


class AlreadyLoaded(InferenceError):
    """There is a model of this name."""


class TooManyRequests(InferenceError):
    """As many requests are being answered, and wait, as may."""


class CallerGone(InferenceError):
    """Nobody waits for the answer any more: it is for the log alone."""


class OutOfMemory(InferenceError):
    """There is no memory for another model."""


class ClientBug(InferenceError):
    """A client raised what the contract does not know. The cause is for the log alone."""


# A class that is not here is answered as the nearest of its bases that is.
ANSWERS: Final[dict[type[InferenceError], tuple[int, str]]] = {
    BadRequest: (400, "bad_request"),
    BadBody: (400, "bad_body"),
    BadHeader: (400, "bad_header"),
    BadModel: (400, "bad_model"),
    BadClient: (400, "bad_client"),
    BadPayload: (400, "bad_payload"),
    BadParameter: (400, "bad_parameter"),
    TensorsRefused: (400, "tensors_refused"),
    Unauthorized: (401, "unauthorized"),
    WrongScope: (403, "forbidden"),
    ManagementOff: (403, "management_off"),
    UnknownModel: (404, "unknown_model"),
    UnknownVersion: (404, "unknown_version"),
    NotAcceptable: (406, "not_acceptable"),
    AlreadyLoaded: (409, "already_loaded"),
    UnsupportedMedia: (415, "unsupported_media"),
    UnsupportedType: (415, "unsupported_type"),
    TooManyRequests: (429, "too_many_requests"),
    CallerGone: (499, "caller_gone"),
    InferenceError: (500, "client_failed"),
    ModelFailed: (502, "model_failed"),
    TooLargeAtOnce: (507, "too_large_at_once"),
    ModelUnavailable: (503, "model_unavailable"),
    ModelBusy: (503, "model_busy"),
    ClientDisabled: (503, "client_disabled"),
    DeadlineExceeded: (504, "deadline_exceeded"),
    OutOfMemory: (507, "out_of_memory"),
}

# What is refused before there is an ask: by Flask, or by NGINX in its own configuration. (Of 408
# only the log tells: NGINX closes such a connection without an answer.)
ROUTING: Final[Mapping[int, tuple[str, str]]] = {
    400: (
        "bad_request",
        "check the request line and the headers: a single one may have 8 kB, all 32 kB",
    ),
    404: ("not_found", "POST /invocations asks a model; GET /docs shows every route"),
    405: ("method_not_allowed", "the Allow header says which methods this path takes"),
    408: ("request_timeout", "send the whole body without a pause of a minute"),
    413: ("too_large", "send fewer items, or smaller pictures"),
    414: ("uri_too_long", "put the request into the body of POST /invocations"),
    429: ("too_many_requests", "try again after Retry-After seconds"),
    500: ("internal_error", "the log of the container has the traceback under the request's id"),
    501: ("not_implemented", "POST /invocations with a Content-Length"),
    503: ("unavailable", "try again in a few seconds"),
    504: ("deadline_exceeded", "send fewer or smaller items in one request"),
}
NOT_READY = "not_ready"
STUCK = "stuck"  # a restart of Triton may help

# Their messages quote from the body: they are for the caller, not for the log.
QUOTING: Final = frozenset(
    ANSWERS[kind][1]
    for kind in (BadBody, BadPayload, BadParameter, TensorsRefused, UnsupportedType)
)

# Seconds after which to try again: a queue moves on sooner than a model is loaded.
RETRY_AFTER_S: Final[Mapping[int, int]] = {429: 1, 503: 5}

# The platform passes on the first 2048 characters of an error's body.
LONGEST_ORIGINAL: Final = 2048
LONGEST_TEXT: Final = 700

# Paths of the hosting service itself, for its clients with another endpoint_url.
SERVICE: Final = "/endpoints/"
SERVICE_STATUS: Final = 424
FIRST_OF_SERVER: Final = 500
SERVICE_HEADERS: Final[Mapping[str, str]] = {"X-Amzn-ErrorType": "ModelError"}


def body(code: str, message: str, hint: str = "", modelname: str = "") -> dict[str, Any]:
    """Return what stands under `error`, the essentials first."""
    error = {"code": code, "message": shortened(message), "hint": shortened(hint)}
    if record := this_request():
        if name := modelname or record.modelname:
            error["modelname"] = name[:200]
        error["request_id"] = record.request_id
    return error


def of_service(status: int, text: str) -> str:
    """Return an error's body as the hosting service passes it on, with `SERVICE_STATUS`.

    nginx.conf does the same with what NGINX refuses.

    Args:
        status: of the error itself.
        text: its body.

    """
    text = text[:LONGEST_ORIGINAL]
    side = "client" if status < FIRST_OF_SERVER else "server"
    return dumps(
        {
            "Message": f'Received {side} error ({status}) from primary with message "{text}".',
            "OriginalStatusCode": status,
            "OriginalMessage": text,
            "LogStreamArn": "",
        }
    )


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def answer(status: int, code: str, message: str, hint: str = "") -> Response:
    """Return the answer for an error."""
    if record := this_request():
        record.code, record.message = code, "" if code in QUOTING else message
    text, _ = encoded({"error": body(code, message, hint)})
    response = Response(text, status, mimetype="application/json")
    if status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    if status == ANSWERS[Unauthorized][0]:
        response.headers["WWW-Authenticate"] = "ApiKey"  # HTTP wants one; the header is ours
    return response


def status_and_code(error: InferenceError) -> tuple[int, str]:
    """Look an error up in the table, by its class or the nearest of its bases."""
    return ANSWERS[contract(error)]


def contract(error: InferenceError) -> type[InferenceError]:
    """Return the class by which an error is answered."""
    return next(kind for kind in type(error).__mro__ if kind in ANSWERS)


def of_payload(error: InferenceError, position: int) -> InferenceError:
    """Return an error that is answered alike, and says which payload of a list it was.

    Its author may raise one object again and again, or write its message as a property.
    """
    return contract(error)(f"payload[{position}]: {error.message}", hint=error.hint)


def item(error: Exception, modelname: str = "") -> dict[str, Any]:
    """Return an error as it stands among the results of a request for several."""
    if isinstance(error, InferenceError):
        log_client(error, modelname)
        status, code = status_and_code(error)
        told = body(code, error.message, error.hint, modelname)
    else:
        log_bug(error)
        status, told = 500, body(ROUTING[500][0], BUG, ROUTING[500][1], modelname)
    let_go(error)
    return {"status": status, "error": told}


def of_inference(error: InferenceError) -> Response:
    """Answer an error of the contract, or a plugin's subclass of one."""
    record = this_request()
    log_client(error, record.modelname if record else "")
    status, code = status_and_code(error)
    let_go(error)
    return answer(status, code, error.message, error.hint)


def of_caller(_: ClientDisconnected) -> Response:
    """Answer a request whose body broke off: nobody reads it, and the body is not to blame."""
    return of_inference(CallerGone("the caller has left before its body had come"))


def of_routing(error: HTTPException) -> Response:
    """Answer what Flask itself refuses: 404, 405, 413."""
    status = error.code or 500
    code, hint = ROUTING.get(status, (error.name.lower().replace(" ", "_"), ""))
    response = answer(status, code, error.description or error.name, hint)
    # What the protocol wants beside the body, such as Allow with 405.
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


BUG = "the server failed in a way it does not explain"


def client_bug() -> ClientBug:
    """Return what the caller is told of an exception that a client should not have let out."""
    return ClientBug("the model's client failed in a way it does not explain", hint=ROUTING[500][1])


def log_client(error: InferenceError, modelname: str) -> None:
    """Log what is the client's own fault; everything else is the caller's or the model's."""
    if isinstance(error, ClientBug | NotJson):
        log.error(
            "the client of %s is at fault in request %s: %s",
            ascii(modelname),
            this_id(),
            error.message,
            exc_info=error.__cause__,
        )


def log_bug(error: Exception) -> None:
    log.error("unforeseen error in request %s", this_id(), exc_info=error)


def this_request() -> Record | None:
    """Return the record of the request that this thread answers."""
    return g.get("record") if has_request_context() else None


def this_id() -> str:
    record = this_request()
    return record.request_id if record else ""


def of_bug(error: Exception) -> Response:
    """Answer what nobody foresaw: a constant text, and the traceback in the log."""
    log_bug(error)
    let_go(error)
    code, hint = ROUTING[500]
    return answer(500, code, BUG, hint)


def let_go(error: BaseException) -> None:
    """Forget what the frames hold that an error came through, once it is told and logged.

    That is the request, with its pictures; and where one of them holds the error itself, as
    `error = BadPayload(…); raise error` does, it would stay until Python looks for such circles:
    96 lists of numbers, 14 MB each, became 4.9 GB. What is still running is left alone, and so are
    generators, which `clear` would end.
    """
    left: list[BaseException | None] = [error]
    let: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in let:
            continue
        let.add(id(one))
        left += [one.__cause__, one.__context__]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:
                with suppress(RuntimeError):  # it runs
                    frame.clear()
        one.__traceback__ = None  # one that is raised again would add to it


def too_large(limit: int, came: int | None = None) -> RequestEntityTooLarge:
    """Return the refusal of a body over the limit, in bytes."""
    size = f"the body has {came} bytes" if came else "the body is too large"
    return RequestEntityTooLarge(f"{size}; at most {limit // 2**20} MiB are taken")


def register(app: Flask) -> None:
    """Make `app` answer every error in this one shape."""
    app.register_error_handler(InferenceError, of_inference)
    app.register_error_handler(ClientDisconnected, of_caller)
    app.register_error_handler(HTTPException, of_routing)
    app.register_error_handler(Exception, of_bug)
