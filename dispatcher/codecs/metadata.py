"""What a request says outside of its body: the model, its version, parameters, its time.

The model is named by, in this order: the path, `modelname` in the body, the custom attributes, the
target model, the query, the default of the settings.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from werkzeug.datastructures import Headers, MultiDict

from clients.errors import BadParameter
from dispatcher.errors import BadBody, BadHeader

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
MAX_ATTRIBUTES = 1024  # the platform's own limit, in visible ASCII
TIMEOUT_PARAMETER = "timeout_ms"
MODEL_NAMES = ("modelname", "model_name")
RESERVED_NAMES = (*MODEL_NAMES, "modelversion", TIMEOUT_PARAMETER)


@dataclass(frozen=True)
class TimeLimit:
    """The time for one request: for its body, the queue, the model and what follows.

    Args:
        ends: when all of it is used up, on the clock of `time.monotonic()`.
        each: seconds for each of several results that are sent as they are made.

    """

    ends: float
    each: float = math.inf

    def deadline(self) -> float:
        """Return the deadline of a result that is begun now."""
        return min(self.ends, time.monotonic() + self.each)


@dataclass(frozen=True)
class Metadata:
    """The parts of a request around its body.

    Args:
        path_model: the model in the path.
        other_model: the model that headers, query or settings name.
        modelversion: the version that attributes or query name.
        texts: parameters from attributes and query, unchecked; attributes take precedence. A
            repeated parameter has both values, as `1,5`, which is no number.
        attributes: the custom attributes.
        request_id: of the request, in the log and the response.
        timeout: the caller's own time limit, in seconds.
        time_limit: of the request.
        accept: the media types that the caller accepts.

    """

    path_model: str = ""
    other_model: str = ""
    modelversion: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    timeout: float = math.inf
    time_limit: TimeLimit = TimeLimit(math.inf)
    accept: str = ""

    def modelname(self, in_body: str | None) -> str:
        """Return the requested model; empty where none is named."""
        return self.path_model or in_body or self.other_model

    def require_modelname(self, in_body: str | None = None) -> str:
        """Return the requested model.

        Raises:
            BadBody: none is named.

        """
        if not (name := self.modelname(in_body)):
            raise BadBody(
                "no model is named",
                hint="name it in the path (/infer/resnet), the query (?modelname=resnet) or the "
                "header X-Amzn-SageMaker-Custom-Attributes: modelname=resnet",
            )
        return name


def read_metadata(
    headers: Headers,
    query: Mapping[str, str],
    *,
    path_model: str = "",
    default_model: str = "",
    request_id: str = "",
) -> Metadata:
    """Read headers and query.

    Raises:
        BadHeader: the custom attributes are too long, or not visible ASCII.
        BadParameter: the caller's time limit is not valid.

    """
    attributes = read_attributes(headers.get(ATTRIBUTES, ""))
    query = combine_values((name, one) for name, some in MultiDict(query).lists() for one in some)
    target = headers.get(TARGET_MODEL, "").removesuffix(".tar.gz").strip("/")
    named = ",".join(dict.fromkeys(filter(None, map(attributes.get, MODEL_NAMES))))
    return Metadata(
        path_model=path_model,
        other_model=named or target or query.get("modelname", "") or default_model,
        modelversion=attributes.get("modelversion", "") or query.get("modelversion", ""),
        texts={
            name: value
            for name, value in {**query, **attributes}.items()
            if name not in RESERVED_NAMES
        },
        attributes=attributes,
        request_id=request_id,
        timeout=read_timeout(attributes.get(TIMEOUT_PARAMETER, query.get(TIMEOUT_PARAMETER))),
        accept=headers.get("Accept", ""),
    )


def read_timeout(text: str | None) -> float:
    """Return the caller's own time limit in seconds; infinity where there is none.

    Raises:
        BadParameter: it is no whole number of milliseconds from 1, or has more than nine digits.

    """
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

    Raises:
        BadHeader: it is too long, or not visible ASCII.

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
