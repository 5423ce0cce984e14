"""The one rendering of errors: the body of every response that is not 2xx.

{"error": {"code": "unknown_model", "message": "…", "hint": "…", "modelname": "…",
           "request_id": "…"}}

Below /v2, as Triton's clients expect: {"error": "message; hint"}. On the routes of OpenAI's clients
{"error": {"message": "message; hint", "type": "…", "code": "…", "param": null}}. NGINX renders its
own errors alike, see nginx.conf.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from flask import Flask, Response, g, has_request_context, request
from werkzeug.exceptions import ClientDisconnected, HTTPException

from clients.errors import InferenceError
from dispatcher.codecs.responses import OK, SentResult, dumps, encode
from dispatcher.errors import (
    ANSWERS,
    QUOTING_CODES,
    RETRY_AFTER_S,
    ROUTING,
    CallerGone,
    ClientBug,
    KeyLimit,
    ModelForbidden,
    NotJson,
    Unauthorized,
    status_and_code,
)
from dispatcher.telemetry.request_log import RequestRecord

log = logging.getLogger(__name__)

# The hosting service passes on the first 2048 characters of an error's body.
MAX_ORIGINAL_MESSAGE: Final = 2048
MAX_TEXT: Final = 700
MAX_NAME: Final = 200

# The paths of OpenAI's clients and of reranking, and other ones of Triton's own protocol; there are
# none besides that begin so.
OPENAI_PATHS: Final = ("/v1/", "/rerank", "/v2/rerank")
TRITON_PATHS: Final = ("/v2",)

# What OpenAI's clients ask models that write texts, at any path below.
WRITING_PATHS: Final = ("/v1/chat", "/v1/completions", "/v1/responses")
NO_WRITING: Final = (
    "this server has no models that write or complete texts",
    "POST /v1/embeddings and /v1/rerank ask models here; completions need another, such as vLLM",
)

# The path of the hosting service, for its clients with another endpoint_url.
SERVICE_PREFIX: Final = "/endpoints/"
SERVICE_STATUS: Final = 424
SERVICE_HEADERS: Final[Mapping[str, str]] = {"X-Amzn-ErrorType": "ModelError"}

BUG_MESSAGE: Final = "the server raised an unexpected exception"


def error_body(
    record: RequestRecord | None, code: str, message: str, hint: str = "", modelname: str = ""
) -> dict[str, Any]:
    error = {"code": code, "message": shorten(message), "hint": shorten(hint)}
    if record:
        if name := modelname or record.modelname:
            error["modelname"] = name[:MAX_NAME]
        error["request_id"] = record.request_id
    return error


def shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def hosting_service_error(status: int, text: str) -> str:
    text = text[:MAX_ORIGINAL_MESSAGE]
    side = "client" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server"
    return dumps(
        {
            "Message": f'Received {side} error ({status}) from primary with message "{text}".',
            "OriginalStatusCode": status,
            "OriginalMessage": text,
            "LogStreamArn": "",
        }
    )


def for_hosting_service(record: RequestRecord) -> bool:
    """Check whether a request, which failed, came on a path of the hosting service."""
    return record.method == "POST" and record.path.startswith(SERVICE_PREFIX)


def error_response(status: int, code: str, message: str, hint: str = "") -> Response:
    """Return the response for an error of the current request; note it for the log."""
    record = current_record()
    if record:
        record.code, record.message = code, "" if code in QUOTING_CODES else message
    text = error_text(record, status, error_body(record, code, message, hint))
    response = Response(text, status, mimetype="application/json")
    if status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    if status == ANSWERS[Unauthorized][0]:
        response.headers["WWW-Authenticate"] = "ApiKey"  # HTTP requires one; the name is ours
    return response


def error_text(record: RequestRecord | None, status: int, error: dict[str, Any]) -> str:
    """Return the JSON of an error, in the form that callers of the request's path expect."""
    text = "; ".join(filter(None, (error["message"], error["hint"])))
    if record and record.path.startswith(OPENAI_PATHS):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        shown = {"message": text, "type": kind, "code": error["code"], "param": None}
        return dumps({"error": shown})
    if record and record.path.startswith(TRITON_PATHS):
        return dumps({"error": text})
    return dumps({"error": error})


def report_error(error: Exception, modelname: str) -> tuple[int, str, str, str]:
    """Log what is a fault of the model's client or a bug; return status, code, message and hint."""
    if isinstance(error, InferenceError):
        if isinstance(error, ClientBug | NotJson):  # by the model's client
            log.error(
                "the client of %s failed in request %s: %s",
                *(ascii(modelname), current_request_id(), error.message),
                exc_info=error.__cause__,
            )
        shown = *status_and_code(error), error.message, error.hint
    else:  # an unexpected exception has a constant text
        log.error("unexpected error in request %s", current_request_id(), exc_info=error)
        code, hint = ROUTING[500]
        shown = 500, code, BUG_MESSAGE, hint
    clear_frames(error)
    return shown


def error_item(error: Exception, modelname: str = "") -> dict[str, Any]:
    """Return an error as one result of a response that holds several."""
    status, code, message, hint = report_error(error, modelname)
    return {"status": status, "error": error_body(current_record(), code, message, hint, modelname)}


def encode_item(document: Mapping[str, Any], modelname: str = "") -> SentResult:
    """Encode one of several results; as an error where JSON cannot represent it."""
    named = document.get("modelname") or document.get("error", {}).get("modelname", "")
    modelname = modelname or named
    try:
        text, non_finite = encode(document)
    except (InferenceError, ValueError) as error:
        own = {"modelname": modelname} if "modelname" in document else {}
        document = {**own, **error_item(error, modelname)}
        text, non_finite = encode(document)
    return SentResult(text, non_finite, modelname, document["status"])


def encode_results(
    first: list[Any], batches: Iterator[list[Any]], modelname: str
) -> Iterator[SentResult]:
    """Yield the results of a list; after a later error, end with the error.

    Raises CallerGone: the caller has closed the connection.
    """
    try:
        for batch in itertools.chain([first], batches):
            for result in batch:
                yield SentResult(*encode(result), modelname, OK)
    except CallerGone:
        raise
    except Exception as error:
        item, record = error_item(error, modelname), current_record()
        last = encode_item(item, modelname)
        if record and record.path.startswith(TRITON_PATHS):
            last = last._replace(text=error_text(record, last.status, item["error"]))
        yield last


def answer_error(error: Exception) -> Response:
    """Answer an error of the contract, an author's subclass of one, or an unexpected exception."""
    record = current_record()
    response = error_response(*report_error(error, record.modelname if record else ""))
    if record and isinstance(error, ModelForbidden):
        record.limit = "models"
    elif record and isinstance(error, KeyLimit):
        record.limit = error.limit
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def answer_disconnect(_: ClientDisconnected) -> Response:
    """Answer a request whose body broke off, for the log: the caller is gone."""
    return answer_error(
        CallerGone("the caller closed the connection before its whole body had arrived")
    )


def answer_http_error(error: HTTPException) -> Response:
    """Answer an error of Flask's own: 404, 405, 413."""
    status = error.code or 500
    code, hint = ROUTING.get(status, (error.name.lower().replace(" ", "_"), ""))
    path = request.path[:100]
    message = {
        404: f"there is no route '{path}'",
        405: f"the route '{path}' has no method {request.method}",
    }.get(status, error.description or error.name)
    if status == 404 and path.startswith(WRITING_PATHS):
        message, hint = NO_WRITING
    response = error_response(status, code, message, hint)
    # What the protocol requires besides the body, such as Allow with 405.
    for name, value in error.get_headers():
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


def current_record() -> RequestRecord | None:
    return g.get("record") if has_request_context() else None


def current_request_id() -> str:
    record = current_record()
    return record.request_id if record else ""


def clear_frames(error: BaseException) -> None:
    """Free what the frames of an error's traceback hold, after it was logged.

    The frames hold the request with its pictures. A frame that holds the error itself, as after
    `error = BadPayload(…); raise error`, would live until the next garbage collection: 96 lists of
    numbers, 14 MB each, became 4.9 GB. Running frames are skipped, and so are generators, which
    `clear` would end.
    """
    errors: list[BaseException | None] = [error]
    seen: set[int] = set()
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        errors += [one.__cause__, one.__context__]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:
                with suppress(RuntimeError):  # it runs
                    frame.clear()
        one.__traceback__ = None  # an error that is raised again would add to it


def register(app: Flask) -> None:
    """Make `app` answer every error in this one form."""
    app.register_error_handler(ClientDisconnected, answer_disconnect)
    app.register_error_handler(HTTPException, answer_http_error)
    app.register_error_handler(Exception, answer_error)
