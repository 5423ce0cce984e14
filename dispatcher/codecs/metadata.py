"""What a request says outside of its body: the model, its version, parameters, its time.

The model is named by, in this order: the path, `modelname` in the body, the custom attributes, the
target model, the query, the default of the settings.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import g, request
from werkzeug.datastructures import Headers

from clients.errors import BadParameter
from clients.request import SEQUENCE_NAMES, SequencePart
from clients.tensors.quoting import brief, encodable
from dispatcher.errors import BadBody, BadHeader
from dispatcher.settings import Settings

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
REPLAY = "X-Replay"  # of `dispatcher replay`; is not captured, or the next replay would have it
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
SESSION = "X-Amzn-SageMaker-Session-Id"
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
NEW_SESSION = "NEW_SESSION"  # in the place of an id
BEGUN_SESSION = "X-Amzn-SageMaker-New-Session-Id"
ENDED_SESSION = "X-Amzn-SageMaker-Closed-Session-Id"
MAX_ATTRIBUTES = 1024  # the platform's own limit, in visible ASCII
TIMEOUT_PARAMETER = "timeout_ms"
MAX_SEQUENCE_ID = 128  # characters, as in Triton; the platform's own sessions have at most 256
PREFER, ASYNC = "Prefer", "respond-async"  # RFC 7240
MODEL_NAMES = ("modelname", "model_name")
RESERVED_NAMES = (*MODEL_NAMES, "modelversion", TIMEOUT_PARAMETER, "traceparent", "tracestate")


@dataclass(frozen=True)
class TimeLimit:
    """The time for one request: for its body, the queue, the model and what follows."""

    ends: float  # when all of it is used up, on the clock of `time.monotonic()`
    each: float = math.inf  # seconds for each of several results that are sent as they are made

    def deadline(self) -> float:
        """Return the deadline of a result that is begun now."""
        return min(self.ends, time.monotonic() + self.each)


@dataclass(frozen=True)
class Metadata:
    """The parts of a request around its body."""

    path_model: str = ""  # the model in the path
    other_model: str = ""  # the model that headers, query or settings name
    modelversion: str = ""  # the version that attributes or query name
    # Parameters from attributes and query, unchecked; attributes take precedence. A repeated
    # parameter has both values, as `1,5`, which is no number.
    texts: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)  # the custom attributes
    request_id: str = ""  # of the request, in the log and the response
    timeout: float = math.inf  # the caller's own time limit, in seconds
    time_limit: TimeLimit = TimeLimit(math.inf)  # of the request
    accept: str = ""  # the media types that the caller accepts
    session: str = ""  # the session of the hosting service, or NEW_SESSION
    owner: str = ""  # the name of the caller's API key; empty where none is needed
    sent: Callable[[], bool] = lambda: True  # whether the answer has gone to the caller

    def modelname(self, in_body: str | None) -> str:
        """Return the requested model; empty where none is named."""
        return self.path_model or in_body or self.other_model

    def require_modelname(self, in_body: str | None = None) -> str:
        """Return the requested model."""
        if not (name := self.modelname(in_body)):
            raise BadBody(
                "no model is named",
                hint="name it in the path (/infer/NAME), the query (?modelname=NAME) or the "
                "header X-Amzn-SageMaker-Custom-Attributes: modelname=resnet; or set "
                "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
            )
        return name


def read_metadata(path_model: str, settings: Settings) -> Metadata:
    """Read headers and query of the current request.

    Raises BadHeader: the custom attributes are too long, or not visible ASCII.
    Raises BadParameter: the caller's time limit is not valid.
    """
    record, headers = g.record, request.headers
    attributes = read_attributes(headers.get(ATTRIBUTES, ""))
    query = combine_values(request.args.items(multi=True))
    target = headers.get(TARGET_MODEL, "").removesuffix(".tar.gz").strip("/")
    named = ",".join(dict.fromkeys(filter(None, map(attributes.get, MODEL_NAMES))))
    return Metadata(
        path_model=path_model,
        other_model=named or target or query.get("modelname", "") or settings.default_model,
        modelversion=attributes.get("modelversion", "") or query.get("modelversion", ""),
        texts={
            name: value
            for name, value in {**query, **attributes}.items()
            if name not in RESERVED_NAMES
        },
        attributes=attributes,
        request_id=record.request_id,
        timeout=read_timeout(attributes.get(TIMEOUT_PARAMETER, query.get(TIMEOUT_PARAMETER))),
        accept=read_accept(headers.get("Accept", ""), settings.default_accept),
        session=headers.get(SESSION, ""),
        owner=record.key,
        sent=lambda: record.reported,
    )


def read_accept(header: str, default: str) -> str:
    """Return what a caller accepts: where it is anything, the default of the settings at best."""
    if not default or header.strip() not in {"", "*/*"}:
        return header
    return f"{default}, */*;q=0.1"  # not every answer can have its form


def prefers_async(headers: Headers) -> bool:
    """Check whether the caller wants the answer later; what is malformed is ignored."""
    preferences = re.sub(r'"[^"]*"', "", ",".join(headers.getlist(PREFER))).split(",")
    return any(one.partition(";")[0].strip().lower() == ASYNC for one in preferences)


def names_sequence(parameters: Mapping[str, Any], metadata: Metadata) -> bool:
    return any(name in parameters or name in metadata.texts for name in SEQUENCE_NAMES)


def starts_sequence(parameters: Mapping[str, Any], metadata: Metadata) -> bool:
    flag = parameters.get("sequence_start", metadata.texts.get("sequence_start"))
    return metadata.session == NEW_SESSION or flag is True or flag == "true"


def read_sequence(parameters: Mapping[str, Any], metadata: Metadata) -> SequencePart | None:
    """Return the sequence that a request belongs to; `None` where it names none."""
    session = metadata.session
    if not session and not names_sequence(parameters, metadata):
        return None
    values = {name: parameters.get(name, metadata.texts.get(name)) for name in SEQUENCE_NAMES}
    identity = values["sequence_id"]
    if session and identity is not None:
        raise BadParameter(
            f"there are both `sequence_id` and {SESSION}", hint="send one of the two"
        )
    if "sequence_id" not in parameters and re.fullmatch("[1-9][0-9]{0,18}", identity or ""):
        identity = int(identity)  # a text of the query, or of the attributes
    start = session == NEW_SESSION
    part = SequencePart(
        str(uuid.uuid4()) if start else session[:MAX_SEQUENCE_ID] or identity,
        start=read_flag("sequence_start", values) or start,
        end=read_flag("sequence_end", values),
        owner=metadata.owner,
        session=bool(session),
    )
    if not is_sequence_id(part.identity):
        raise BadParameter(
            f"`sequence_id` is {brief(part.identity)}",
            hint=f"expected a whole number from 1 to {2**63 - 1}, or a text of at most "
            f"{MAX_SEQUENCE_ID} characters",
        )
    return part


def is_sequence_id(value: object) -> bool:
    """Check whether a value can be the id of a sequence; Triton's gRPC has signed numbers."""
    if isinstance(value, str):
        return 0 < len(value) <= MAX_SEQUENCE_ID and encodable(value)
    return type(value) is int and 0 < value < 2**63


def read_flag(name: str, values: Mapping[str, Any]) -> bool:
    """Return a boolean, from JSON or from a text; false where there is none."""
    flags = {None: False, False: False, "false": False, True: True, "true": True}
    value = values[name]
    if not isinstance(value, bool | str | None) or value not in flags:
        raise BadParameter(f"`{name}` is {brief(value)}", hint="expected true or false")
    return flags[value]


def session_headers(part: SequencePart | None) -> dict[str, str]:
    """Return the headers that say that a session of the hosting service began or ended."""
    headers: dict[str, str] = {}
    if part and part.session and part.asked:
        if part.start:
            expires = time.gmtime(time.time() + min(part.asked.values()))
            text = time.strftime("%Y-%m-%dT%H:%M:%SZ", expires)
            headers[BEGUN_SESSION] = f"{part.identity}; Expires={text}"
        if part.end:
            headers[ENDED_SESSION] = str(part.identity)
    return headers


def read_timeout(text: str | None) -> float:
    """Return the caller's own time limit in seconds; infinity where there is none."""
    if text is None:
        return math.inf
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise BadParameter(
            f"`{TIMEOUT_PARAMETER}` is {text[:60]!r}",
            hint="expected milliseconds, a whole number from 1 to 999999999",
        )
    return int(text) / 1000


def read_attributes(header: str) -> dict[str, str]:
    """Read pairs of `name=value`, separated by `;` or `,`.

    Text between two pairs belongs to the value before it: `confidence=0,75` has the value `0,75`,
    which is refused where a number is expected. Text before the first pair, such as the caller's
    own id, is skipped.
    """
    if not header:
        return {}
    if len(header) > MAX_ATTRIBUTES or not re.fullmatch(r"[\x20-\x7e]*", header):
        raise BadHeader(
            f"{ATTRIBUTES} has {len(header)} characters, or some that are not visible ASCII",
            hint=f"expected at most {MAX_ATTRIBUTES} visible ASCII characters",
        )
    pairs: list[tuple[str, str]] = []
    for separator, part in re.findall("([;,]|^)([^;,]*)", header):
        name, equals, value = map(str.strip, part.partition("="))
        if equals:
            pairs.append((name, value))
        elif name and pairs:
            before, value = pairs.pop()
            pairs.append((before, f"{value}{separator}{name}"))
    return combine_values(pairs)


def combine_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return values by name; join the values of a repeated name (RFC 9110, 5.3)."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: ",".join(some) for name, some in values.items()}


def format_attributes(attributes: Mapping[str, str]) -> str:
    """Format attributes as a header's value that cannot end the header."""
    text = ";".join(f"{name}={value}" for name, value in attributes.items())
    return re.sub(r"[^\x20-\x7e]", "?", text)[:MAX_ATTRIBUTES]
