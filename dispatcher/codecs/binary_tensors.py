"""Bodies of Triton's binary tensor data extension: a JSON header, then the tensors' bytes.

https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md. The
length of the header is stated in an HTTP header, or in the media type as SageMaker's clients do;
without it all of the body is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from clients.tensors.quoting import brief
from dispatcher.codecs.json_request import parse_object
from dispatcher.errors import BadBody, BadHeader

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
SAGEMAKER_TYPE: Final = "application/vnd.sagemaker-triton.binary+json"
SAGEMAKER_LENGTH: Final = "json-header-size"  # a parameter of the type
MAX_DIGITS: Final = 12

EXPECTED: Final = 'expected {"inputs": [{"name": "…", "shape": […], "datatype": "FP32", …}]}'
SHARED_MEMORY: Final = "shared_memory"  # how the names of its parameters begin


def read_header_length(stated: str | None, body: bytes, where: str) -> int | None:
    """Return the length of the JSON header in bytes; `None` where all of the body is JSON.

    Args:
        stated: the length, as it came.
        body: of the request.
        where: what states it, for the message.

    Raises:
        BadHeader: it is no whole number, or larger than the body.

    """
    if stated is None:
        return None
    if not (stated.isascii() and stated.isdigit() and len(stated) <= MAX_DIGITS):
        raise BadHeader(
            f"{where} is {stated[:60]!r}", hint="expected a whole number: the bytes of the header"
        )
    if (length := int(stated)) > len(body):
        raise BadHeader(
            f"{where} is {length}, and the body has {len(body)} bytes",
            hint="expected the length of the JSON at the beginning of the body",
        )
    return length


def check_header(header: bytes, deadline: float) -> dict[str, Any]:
    """Check what Triton must not be sent; Triton itself checks the rest.

    Returns:
        the header's fields.

    Raises:
        BadBody: it is not JSON, is nested too deeply, or names shared memory.
        DeadlineExceeded: other large bodies were parsed until then.

    """
    document = parse_object(header, deadline, hint=EXPECTED, pairs=unique_fields)
    for part in ("inputs", "outputs"):
        tensors = document.get(part)
        for place, tensor in enumerate(tensors if isinstance(tensors, list) else ()):
            parameters = tensor.get("parameters") if isinstance(tensor, dict) else None
            names = parameters if isinstance(parameters, Mapping) else ()
            if named := next((name for name in names if name.startswith(SHARED_MEMORY)), ""):
                raise BadBody(
                    f"`{part}[{place}].parameters` has {brief(named)}: shared memory is not taken",
                    hint="send tensors in the body, and receive them in the response",
                )
    return document


def parameters_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request; none where they are no object, as Triton will say."""
    parameters = document.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def with_parameters(document: Mapping[str, Any], parameters: Mapping[str, Any]) -> bytes:
    """Return a header with other values of some parameters."""
    changed = {**document, "parameters": {**parameters_of(document), **parameters}}
    return json.dumps(changed, separators=(",", ":")).encode()


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields; of two with one name Triton might read the other one.

    Raises:
        BadBody: a name is there twice.

    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadBody(f"a JSON object has the field {brief(twice)} twice", hint=EXPECTED)
    return fields
