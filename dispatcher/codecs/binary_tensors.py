"""Bodies of Triton's binary tensor data extension: a JSON header, then the tensors' bytes.

https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md. The
length of the header is stated in an HTTP header, or in the media type as SageMaker's clients do;
without it all of the body is JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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


def read_header(header: bytes, deadline: float) -> dict[str, Any]:
    """Read the JSON, and check what Triton must not be sent; Triton itself checks the rest.

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
    if len(fields) < len(pairs):  # the time is linear, as callers choose the number of fields
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise BadBody(f"a JSON object has the field {brief(twice)} twice", hint=EXPECTED)
    return fields


def named_tensors(document: Mapping[str, Any], part: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the `inputs` or `outputs` of a request with their names, as far as they have one."""
    tensors = document.get(part)
    read = [one for one in tensors if isinstance(one, dict)] if isinstance(tensors, list) else []
    return [(one["name"], one) for one in read if isinstance(one.get("name"), str)]


def asking_for_all(document: Mapping[str, Any], names: Iterable[str]) -> bytes:
    """Return the JSON of a request as a model with a response cache is sent it.

    Args:
        document: the JSON of the request.
        names: of the model's outputs: all of them are asked for.

    """
    document = dict(document)
    if asked := dict(named_tensors(document, "outputs")):
        more = [{"name": n, "parameters": {"binary_data": True}} for n in names if n not in asked]
        document["outputs"] = [*document["outputs"], *more]
    if isinstance(given := document.get("parameters"), dict):
        document["parameters"] = {k: v for k, v in given.items() if k == "binary_data_output"}
    return json.dumps(document).encode()


def pick_outputs(
    body: bytes, length: int | None, names: Collection[str]
) -> tuple[bytes, int | None, set[str]]:
    """Return a response with some of its outputs: body, length of the JSON, and their names.

    Args:
        body: of the response.
        length: of its JSON in bytes; `None`, here as in the result, where all of it is JSON.
        names: of the wanted outputs; none means all.

    """
    document = json.loads(body[:length])
    outputs, tensors, start = [], [], length or 0
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        end = start + (size or 0)
        if not names or output["name"] in names:
            outputs.append(output)
            tensors += [] if size is None else [body[start:end]]
        start = end
    found = {output["name"] for output in outputs}
    if len(outputs) == len(document["outputs"]):
        return body, length, found
    header = json.dumps({**document, "outputs": outputs}, separators=(",", ":")).encode()
    return header + b"".join(tensors), len(header) if tensors else None, found
