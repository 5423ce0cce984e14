"""What a request asks for, whatever form it came in."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.base import Payload
from clients.errors import DeadlineExceeded
from clients.request import Media
from clients.tensors.quoting import brief
from dispatcher.codecs.metadata import Envelope
from dispatcher.errors import BadBody
from dispatcher.execution.admission import LARGE
from dispatcher.execution.deadline import TIMEOUT

EXPECTED = 'expected {"modelname": "resnet", "payload": {"img": "<base64 of a picture>"}}'
SEVERAL = (
    "send several requests as application/jsonlines, each on a line of its own, or in a list: "
    '{"requests": [{"modelname": …, "payload": …}, …]}'
)
FIELDS = ("modelname", "modelversion", "parameters", "payload")
# What others call them; in lower case, without "_" and "-".
MEANT = {"model": "modelname", "version": "modelversion", **{name: name for name in FIELDS}}


@dataclass(frozen=True)
class Ask:
    """One model, and what it is asked.

    Args:
        modelname: the client's name.
        payloads: one payload, or as many as the list held; `Media` for a file that came as it is.
        is_list: whether the payload came as a list, so that the result is one too.
        parameters: those in the body; the client checks them.
        modelversion: the version asked for; the empty text means the latest.
        tensors: the payload is a V2 body or a NumPy file, for the model itself.
        shared: other clients are asked about the same payload.

    """

    modelname: str
    payloads: list[Payload | Media]
    is_list: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    modelversion: str = ""
    tensors: bool = False
    shared: bool = False


@dataclass(frozen=True)
class One:
    """The usual request: one ask."""

    ask: Ask


@dataclass(frozen=True)
class SeveralModels:
    """One payload, several models: the answer has a result by each name."""

    asks: list[Ask]


@dataclass(frozen=True)
class MixedList:
    """A list of requests; one that could not be read stands there as its error."""

    asks: list[Ask | BadBody]


Asked = One | SeveralModels | MixedList


def read_json(body: bytes, envelope: Envelope, max_batch: int) -> Asked:
    """Read a JSON body: the documented one, a V2 one, or a list of requests.

    Raises:
        BadBody: it is not JSON, or a field is missing, unknown or of the wrong type.

    """
    document = parsed(body, envelope.budget.deadline())
    if "requests" in document:
        return mixed_list(document, envelope, max_batch)
    names = document.get("modelname")
    if isinstance(names, list):
        return several_models(document, names, envelope, max_batch)
    return One(read_ask(document, envelope, max_batch))


# Python's parser holds its lock from a body's first byte to its last: eight bodies of 25 MiB, one
# after the other, left nobody else a word for 13 s. So one large body is read at a time, and
# between two of them others have their turn.
LONG_S = 0.1  # what pictures in base64, a long text each, never take
PAUSE_S = 0.02
one_is_read = threading.Lock()


def loaded(body: bytes, deadline: float) -> Any:
    """Return what JSON says.

    Raises:
        DeadlineExceeded: others were read until then.
        ValueError: it is none.
        RecursionError: it is nested too deeply.

    """
    if len(body) <= LARGE:
        return json.loads(body)
    left = max(0.0, deadline - time.monotonic())
    if not one_is_read.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
        raise DeadlineExceeded(
            "the time for this request was used up while other large bodies were read",
            hint="send fewer large bodies at a time",
        )
    try:
        began = time.monotonic()
        try:
            return json.loads(body)
        finally:
            if time.monotonic() - began > LONG_S:
                time.sleep(PAUSE_S)
    finally:
        one_is_read.release()


def parsed(body: bytes, deadline: float = math.inf) -> dict[str, Any]:
    """Return the object that a body is.

    Raises:
        BadBody: it is none.
        DeadlineExceeded: other bodies were read until then.

    """
    try:
        document = loaded(body, deadline)
    except (ValueError, RecursionError) as error:
        came = f"{len(body)} bytes that begin with {body[:16]!r}" if body else "nothing"
        hint = SEVERAL if is_several(error) else EXPECTED
        raise BadBody(f"the body is not JSON ({error}); it is {came}", hint=hint) from error
    if not isinstance(document, dict):
        hint = SEVERAL if isinstance(document, list) else EXPECTED
        raise BadBody(f"the body is {brief(document)}, not a JSON object", hint=hint)
    return document


def is_several(error: Exception) -> bool:
    """Whether JSON could not be read because an object or a list follows another."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    before, after = error.doc[: error.pos], error.doc[error.pos : error.pos + 1]
    return after in {"{", "["} and before.rstrip().endswith(("}", "]"))


def mixed_list(document: dict[str, Any], envelope: Envelope, max_batch: int) -> MixedList:
    if others := [name for name in document if name != "requests"]:
        raise BadBody(
            f"the body has {brief(others[0])} beside `requests`",
            hint="each request in the list has its own modelname, payload and parameters",
        )
    requests = of_kind(document["requests"], "requests", list, "a list of requests")
    checked_length(requests, "requests", max_batch)
    asks: list[Ask | BadBody] = []
    for request in requests:
        try:
            asks.append(
                read_ask(of_kind(request, "request", dict, "an object"), envelope, max_batch)
            )
        except BadBody as error:
            asks.append(error)
    return MixedList(asks)


def several_models(
    document: dict[str, Any], names: list[Any], envelope: Envelope, max_batch: int
) -> Asked:
    checked_length(names, "modelname", max_batch)
    for place, name in enumerate(names):
        of_kind(name, f"modelname[{place}]", str, "the name of a model")
    if len(set(names)) < len(names):
        raise BadBody("`modelname` has a name twice", hint="ask each model once")
    if envelope.path_model:
        names = [envelope.path_model]  # the path comes first, as it does for one name
    asks = [
        read_ask({**document, "modelname": name}, envelope, max_batch, shared=True)
        for name in names
    ]
    return SeveralModels(asks)


def read_ask(
    document: dict[str, Any], envelope: Envelope, max_batch: int, *, shared: bool = False
) -> Ask:
    """Read one request.

    Raises:
        BadBody: a field is missing, unknown or of the wrong type.

    """
    if TIMEOUT in document:
        raise BadBody(
            f"the body has {TIMEOUT}",
            hint="it goes into the query, or into the custom attributes",
        )
    if "inputs" in document and "payload" not in document:
        return v2_ask(document, envelope)
    if unknown := [name for name in document if name not in FIELDS]:
        meant = MEANT.get(unknown[0].lower().replace("_", "").replace("-", ""))
        raise BadBody(
            f"the body has an unknown field {brief(unknown[0])}",
            hint=f"write `{meant}`"
            if meant and meant not in document
            else f"it may have {', '.join(FIELDS)}; what the model is asked goes into `payload`, "
            'such as {"payload": {"img": …}}, and settings of the model go into `parameters`',
        )
    modelname = name_of(document, envelope)
    if "payload" not in document:
        raise BadBody("`payload` is missing", hint=EXPECTED)
    payload = of_kind(
        document["payload"], "payload", dict | list, "an object, or a list of objects"
    )
    is_list = isinstance(payload, list)
    return Ask(
        modelname=modelname,
        payloads=payload_list(payload, max_batch) if is_list else [payload],
        is_list=is_list,
        parameters=optional(document, "parameters", dict, "an object"),
        modelversion=version_of(document, envelope),
        shared=shared,
    )


def v2_ask(document: dict[str, Any], envelope: Envelope) -> Ask:
    """Read a V2 body, which may name the model as the documented one does."""
    return Ask(
        modelname=name_of(document, envelope),
        payloads=[document],
        modelversion=version_of(document, envelope),
        tensors=True,
    )


def name_of(document: dict[str, Any], envelope: Envelope) -> str:
    name = document.get("modelname")
    if name is not None:
        of_kind(name, "modelname", str, "the name of a model")
    if not (chosen := envelope.modelname(name)):
        raise BadBody("`modelname` is missing", hint=EXPECTED)
    return chosen


def optional(document: dict[str, Any], name: str, kind: type[Any], expected: str) -> Any:
    value = document.get(name)
    return kind() if value is None else of_kind(value, name, kind, expected)


def of_kind(value: Any, name: str, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or value == "":
        raise BadBody(f"`{name}` is {brief(value)}; expected {expected}", hint=EXPECTED)
    return value


def payload_list(payloads: list[Any], max_batch: int) -> list[Payload | Media]:
    checked_length(payloads, "payload", max_batch)
    for position, payload in enumerate(payloads):
        of_kind(payload, f"payload[{position}]", dict, "an object")
    return payloads


def checked_length(items: list[Any], name: str, most: int) -> None:
    if not 1 <= len(items) <= most:
        raise BadBody(
            f"`{name}` is a list of {len(items)}", hint=f"expected 1 to {most} in one request"
        )


def version_of(document: Mapping[str, Any], envelope: Envelope) -> str:
    """Return the version that a body wants, or what came around it.

    Raises:
        BadBody: it is no version.

    """
    return version(document.get("modelversion")) or version(envelope.modelversion or None)


def version(value: Any) -> str:
    """Return a version as Triton spells it: 2 and "2" are the same.

    Raises:
        BadBody: it is no version.

    """
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not is_version(text):
        raise BadBody(
            f"`modelversion` is {brief(value)}", hint="expected a whole number from 1, such as 2"
        )
    return text


def is_version(text: str) -> bool:
    # Triton keeps a version as a signed 64-bit number.
    return text.isascii() and text.isdigit() and text[0] != "0" and int(text[:20]) < 2**63
