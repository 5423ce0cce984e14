"""Translate Triton's errors into the contract's, once and by status code.

Where one status has several meanings and only Triton's text tells them apart, the text is read
here and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import grpc

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownSequence,
    UnknownVersion,
)
from clients.triton.server import DIED_LOADING, ModelState, Signature

BACKENDS = ("onnxruntime",)
"""The backends that the container brings itself (backends)."""

# Any other status is ModelFailed.
TRANSLATION: Mapping[grpc.StatusCode, type[InferenceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: TensorsRefused,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: UnknownModel,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ModelUnavailable,
    grpc.StatusCode.OUT_OF_RANGE: TensorsRefused,
    # The container's own backends refuse so what does not fit into shared memory.
    grpc.StatusCode.UNIMPLEMENTED: TooLargeAtOnce,
    grpc.StatusCode.UNAVAILABLE: ModelUnavailable,
}

HTTP_TRANSLATION: Mapping[int, type[InferenceError]] = {
    400: TensorsRefused,
    404: UnknownModel,
    503: ModelUnavailable,
}
"""The same for Triton's HTTP port; any other status is ModelFailed."""

FINISHED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
"""With these Triton has finished the request; others may come from the connection alone."""

# An ensemble whose steps do not fit each other has the same status (INVALID_ARGUMENT) as a request
# that a step refuses, such as one of a wrong shape: the text alone tells them apart.
MISFIT = re.compile(
    r"in ensemble '.*(inference input '.*' data-type is '\w+', but model '.*' expects '\w+'"
    r"|(expected \d+ inputs but got \d+ inputs for model '))"
)
# Triton has one status (INTERNAL) for all reasons why a model is not loaded.
NO_ROOM = "No space left on device"  # for the model's region in /dev/shm
# Triton's reason for a model that a caller has unloaded; it has the same state as one that failed.
UNLOADED = "unloaded"

# The same status as for tensors that do not fit.
NOT_BEGUN = "must specify the START flag on the first request of the sequence"

# What Triton itself says; of a single answer with UNAVAILABLE where it is busy, INVALID_ARGUMENT.
SAID_BY_TRITON = re.compile(
    r"(in ensemble '.*', )?((?P<busy>Exceeds maximum queue size|Request timeout expired)"
    r"|((un)?expected|inference|input) .*(for|input|model) ')"
)

STUB_DIED = re.compile(r"Stub process '[^']*' is not healthy\.?")
DIED = "the process of the model died before it answered"

NO_ID = "[request id: <id_unknown>] "
FIX = " To mend it: "  # between reason and fix, as in backends/model_config.py

CHECK_SAYS_MORE = "`dispatcher check` on the model's folder may say more"
LOG_SAYS_WHY = "Triton's log has the reason; `dispatcher check` on the model's folder may name it"


def translate_error(error: Any) -> InferenceError:
    """Return the contract's error for a `grpc.RpcError`."""
    text = first_line(error.details())
    if NOT_BEGUN in text:
        return unknown_sequence()
    return TRANSLATION.get(error.code(), ModelFailed)(text)


def stream_error(text: str) -> InferenceError:
    """Return the error for an answer of a stream, which has no status: the model may be unknown.

    With the header `triton_grpc_error` it had one. But Triton 2.51 then ends with SIGSEGV where a
    model gives an error and ends its answers after that.
    """
    text = first_line(text)
    if NOT_BEGUN in text:
        return unknown_sequence()
    if said := SAID_BY_TRITON.match(text):
        return (ModelUnavailable if said["busy"] else TensorsRefused)(text)
    return UnknownModel(text)


def unknown_sequence() -> UnknownSequence:
    """Return the error for a sequence that Triton does not keep: its own text has Triton's id."""
    return UnknownSequence(
        "the model does not keep this sequence: it has ended, was without a request for too long "
        "(max_sequence_idle_microseconds in config.pbtxt), or never began",
        hint="begin it again: a session with NEW_SESSION, a `sequence_id` with "
        '"sequence_start": true',
    )


def http_error(status: int, body: bytes, version: str) -> InferenceError:
    """Return the contract's error for a response of Triton's HTTP port."""
    try:
        text = first_line(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = first_line(body.decode(errors="replace")) or f"Triton answered {status}"
    kind = HTTP_TRANSLATION.get(status, ModelFailed)
    return (UnknownVersion if kind is UnknownModel and version else kind)(text)


def inference_error(
    error: grpc.RpcError | ValueError | InferenceError,
    signature: Signature,
    inputs: Collection[str],
    abandoned: str,
) -> InferenceError:
    """Return the contract's error for a run that failed, or whose channel was `abandoned`."""
    if abandoned:
        return ModelFailed(abandoned)
    if isinstance(error, ValueError):
        return ModelFailed(f"the model's answer cannot be read: {error}")
    known = error if isinstance(error, InferenceError) else translate_error(error)
    own_backend = signature.ensemble or signature.backend in BACKENDS
    if isinstance(known, TooLargeAtOnce) and not own_backend:
        return ModelFailed(known.message)
    if isinstance(known, TensorsRefused) and (misfit := MISFIT.match(known.message)):
        all_sent = all(spec.name in inputs for spec in signature.inputs)
        if all_sent or not misfit[2]:  # else a step may lack an input that the caller left out
            return ModelFailed(known.message)
    return known


def load_error(error: InferenceError, reasons: Collection[str]) -> InferenceError:
    """Return why a model could not be loaded."""
    known = next(filter(None, reasons), "")
    reason, _, fix = (known or error.message.replace(DIED, DIED_LOADING)).partition(FIX)
    kind = TooLargeAtOnce if NO_ROOM in reason else ModelFailed
    return kind(reason, hint=fix or (CHECK_SAYS_MORE if known else LOG_SAYS_WHY))


def not_ready(model: str, states: Collection[ModelState]) -> ModelUnavailable:
    reasons = sorted({state.why for state in states if state.why})
    why, _, fix = "".join(f": {reason}" for reason in reasons).partition(FIX)
    if reasons == [UNLOADED]:
        fix = f"POST /load_model/{model} loads it"
    return ModelUnavailable(
        f"the model {model!r} is not ready{why}",
        hint=fix or "GET /health shows every model's state; Triton's log has the reason",
    )


def first_line(text: object) -> str:
    """Return an error's first line, without the traceback and the unset request id."""
    return STUB_DIED.sub(DIED, str(text or "").partition("\n")[0].strip().replace(NO_ID, ""))


def load_reason(text: str) -> str:
    """Return the first line of why Triton did not load a model."""
    return first_line(STUB_DIED.sub(DIED_LOADING, text))


def too_late(model: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the model {model!r} did not answer within {timeout:.3f} s, what was left of the "
        "time for this request",
        hint="send fewer or smaller items in one request",
    )


def no_slot(model: str, timeout: float) -> ModelBusy:
    return ModelBusy(
        f"the model {model!r} did not begin the sequence within {timeout:.3f} s: other sequences "
        "have all its slots, or it is slow",
        hint="try again after Retry-After seconds; end sequences that are done with `sequence_end`",
    )


def still_loading(model: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the model {model!r} was not loaded within {timeout:g} s; Triton goes on",
        hint=f"GET /models/{model} says when it is there; then POST /reload. A load that hangs is "
        f"ended and not repeated by itself: the log shows where it was; POST /load_model/{model} "
        "begins again",
    )


def still_in_use(model: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the model {model!r} was not unloaded within {timeout:.3g} s because it is still in use; "
        "Triton goes on",
        hint=f"GET /models/{model} is 404 when it is gone; a model that never answers a request "
        "is gone when Triton is restarted",
    )


def by_states(
    error: InferenceError, model: str, version: str, states: Sequence[ModelState]
) -> InferenceError:
    """Return why a model refused a request, from the states of its versions."""
    ready = [state.version for state in states if state.ready]
    if not states:
        return UnknownModel(f"there is no model {model!r} in the model repository")
    if not ready:
        return not_ready(model, states)
    if version and version not in ready:
        return UnknownVersion(
            f"the model {model!r} has no version {version!r}",
            hint=f"versions that are served: {', '.join(ready)}",
        )
    if isinstance(error, UnknownModel):  # the model's own code said so
        return ModelFailed(error.message)
    return ModelBusy(
        f"the model {model!r} does not take this now: {error.message}",
        hint="try again after Retry-After seconds",
    )
