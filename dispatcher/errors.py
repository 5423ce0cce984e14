"""The dispatcher's errors, and the one table from errors to HTTP.

`codecs/error_responses.py` renders them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from werkzeug.exceptions import RequestEntityTooLarge

from clients.errors import (
    AskFailed,
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
    TooManyRequests,
    UnknownModel,
    UnknownSequence,
    UnknownVersion,
    UnsupportedMedia,
)


class BadBody(BadRequest):
    """The endpoint does not take the request's body."""


class BadHeader(BadRequest):
    """The endpoint does not take a header of the request."""


class BadModel(BadRequest):
    """A folder cannot be loaded as a model, or its name or URL cannot be used."""


class BadClient(BadRequest):
    """A new or changed client does not work; the previous one is kept."""


class UnsupportedType(BadRequest):
    """The body has an unsupported media type or content encoding."""


class NotAcceptable(BadRequest):
    """The response cannot be given in any type that the caller accepts."""


class Unauthorized(InferenceError):
    """The request has no API key, or an unknown one."""


class WrongScope(InferenceError):
    """The request's API key has another scope."""


class ModelForbidden(InferenceError):
    """The request's API key may not ask this model."""


class KeyLimit(InferenceError):
    """The request's API key has used up a limit of its own."""

    def __init__(self, key: str, most: str, limit: str, retry_after: int) -> None:
        hint = "try again after Retry-After seconds, or ask the operator for more"
        super().__init__(f"the key of {key!r} is limited to {most} ({limit})", hint=hint)
        self.limit, self.retry_after = limit, retry_after


class ManagementOff(InferenceError):
    """The management routes are switched off."""


class ForeignPage(InferenceError):
    """A page of another site would change what this container serves."""


class AlreadyLoaded(InferenceError):
    """There is a model of this name already."""


class JobConflict(InferenceError):
    """Another job has this id, or a job has no result."""


class UnknownJob(InferenceError):
    """There is no such job of this caller."""


class NotHere(InferenceError):
    """What was asked for needs a Triton of this container, or a setting."""


class CallerGone(InferenceError):
    """The caller has closed the connection; the error appears in the log only."""


class OutOfMemory(InferenceError):
    """There is not enough memory for another model."""


class ClientBug(InferenceError):
    """A client raised an unexpected exception. The cause appears in the log only."""


class NotJson(InferenceError):
    """A client's result cannot be encoded as JSON; the message says what in it."""


class ObjectForbidden(InferenceError):
    """An object must not be read or written, by the settings, or by S3 or the host of a picture."""


class ObjectNotFound(InferenceError):
    """S3 has no such object, or no such bucket, or a host has no such picture."""


class ObjectTooLarge(InferenceError):
    """An object in S3, or a picture at a URL, is larger than the container reads."""


class StorageFailed(InferenceError):
    """S3 refused the container: its credentials or region are wrong; or a host is not trusted."""


class StorageUnavailable(InferenceError):
    """S3, or a host of pictures, cannot be reached at present, or a download broke off."""


# An error is answered as its class, or the nearest base class that is in this table.
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
    ModelForbidden: (403, "model_forbidden"),
    ManagementOff: (403, "management_off"),
    ForeignPage: (403, "foreign_page"),
    ObjectForbidden: (403, "object_forbidden"),
    UnknownModel: (404, "unknown_model"),
    UnknownVersion: (404, "unknown_version"),
    ObjectNotFound: (404, "object_not_found"),
    UnknownJob: (404, "unknown_job"),
    NotAcceptable: (406, "not_acceptable"),
    AlreadyLoaded: (409, "already_loaded"),
    JobConflict: (409, "job_conflict"),
    # No 404: of a multi-model endpoint that says that the model has to be loaded.
    UnknownSequence: (410, "unknown_sequence"),
    ObjectTooLarge: (413, "object_too_large"),
    UnsupportedMedia: (415, "unsupported_media"),
    UnsupportedType: (415, "unsupported_type"),
    TooManyRequests: (429, "too_many_requests"),
    KeyLimit: (429, "key_limit"),
    CallerGone: (499, "caller_gone"),
    InferenceError: (500, "client_failed"),
    AskFailed: (500, "ask_failed"),
    NotHere: (501, "not_implemented"),
    ModelFailed: (502, "model_failed"),
    StorageFailed: (502, "storage_failed"),
    TooLargeAtOnce: (507, "too_large_at_once"),
    ModelUnavailable: (503, "model_unavailable"),
    ModelBusy: (503, "model_busy"),
    StorageUnavailable: (503, "storage_unavailable"),
    ClientDisabled: (503, "client_disabled"),
    DeadlineExceeded: (504, "deadline_exceeded"),
    OutOfMemory: (507, "out_of_memory"),
}

# Errors raised by Flask, or by NGINX according to its own configuration. (408 appears in the log
# only: NGINX closes such a connection without a response.)
ROUTING: Final[Mapping[int, tuple[str, str]]] = {
    400: (
        "bad_request",
        "check the request line and the headers: a single one may have 8 kB, all 32 kB",
    ),
    404: ("not_found", "POST /invocations asks a model; GET /openapi.json lists every route"),
    405: (
        "method_not_allowed",
        "the header Allow lists this path's methods; GET /openapi.json lists every route",
    ),
    408: ("request_timeout", "send the whole body without a pause of a minute"),
    413: ("too_large", "send fewer items, or smaller pictures"),
    414: ("uri_too_long", "put the request into the body of POST /invocations"),
    429: ("too_many_requests", "try again after Retry-After seconds"),
    500: ("internal_error", "the container's log has the traceback, with the request's id"),
    501: ("not_implemented", "POST /invocations with a Content-Length"),
    503: ("unavailable", "try again in a few seconds"),
    504: ("deadline_exceeded", "send fewer or smaller items in one request"),
}
NOT_READY = "not_ready"
STUCK = "stuck"  # a restart of Triton may help

# Their messages quote from the body, which must not appear in the log.
QUOTING_CODES: Final = frozenset(
    ANSWERS[kind][1]
    for kind in (BadBody, BadPayload, BadParameter, TensorsRefused, UnsupportedType)
)

# Seconds after which to try again: a queue moves faster than a model loads.
RETRY_AFTER_S: Final[Mapping[int, int]] = {429: 1, 503: 5}


def contract_class(error: InferenceError) -> type[InferenceError]:
    """Return the class as which an error is answered."""
    return next(kind for kind in type(error).__mro__ if kind in ANSWERS)


def status_and_code(error: InferenceError) -> tuple[int, str]:
    """Look an error up in the table, by its class or the nearest base class."""
    return ANSWERS[contract_class(error)]


def with_place(error: InferenceError, place: str) -> InferenceError:
    """Return a copy of an error that says which payload of a list it is about.

    The copy has the contract's own class: an author's may raise one object again and again, or
    compute its message.
    """
    return contract_class(error)(f"{place}: {error.message}", hint=error.hint)


def time_used_up() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the time for this request is used up", hint="send fewer or smaller items in one request"
    )


def client_bug() -> ClientBug:
    return ClientBug("the model's client raised an unexpected exception", hint=ROUTING[500][1])


def too_large(limit: int, came: int | None = None) -> RequestEntityTooLarge:
    size = f"the body has {came} bytes" if came else "the body is too large"
    return RequestEntityTooLarge(f"{size}; at most {limit // 2**20} MiB are allowed")
