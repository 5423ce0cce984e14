"""Bodies of Triton's binary tensor data extension: a JSON header, then the tensors' bytes.

https://github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md. The
length of the header is stated in an HTTP header, or in the media type as SageMaker's clients do;
without it all of the body is JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flask import Request, Response

from clients.tensors.v2_protocol import BINARY
from dispatcher.codecs.json_request import of_sequence, parse_object, parse_version
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadHeader
from dispatcher.model_request import ModelRequest

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
SAGEMAKER_TYPE: Final = "application/vnd.sagemaker-triton.binary+json"
SAGEMAKER_LENGTH: Final = "json-header-size"  # a parameter of the type
MAX_DIGITS: Final = 12

EXPECTED: Final = 'expected {"inputs": [{"name": "…", "shape": […], "datatype": "FP32", …}]}'
FIELDS_EXPECTED: Final = (
    'expected an object with a field for each input: {"text": "…", "number": 1}'
)


def read_header_length(stated: str | None, body: bytes, where: str) -> int | None:
    """Return the length of the JSON header in bytes; `None` where all of the body is JSON."""
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


def read_tensors(request: Request, metadata: Metadata) -> ModelRequest:
    """Read a request whose tensors are in JSON, or in binary behind it.

    Raises BadHeader: the length is wrong.
    Raises BadBody: the body has no JSON object, or it is nested too deeply.
    Raises DeadlineExceeded: other large bodies were parsed until then.
    """
    body, stated, where = request.get_data(), request.headers.get(HEADER_LENGTH), HEADER_LENGTH
    if request.mimetype == SAGEMAKER_TYPE:
        stated, where = (
            request.mimetype_params.get(SAGEMAKER_LENGTH),
            f"{SAGEMAKER_LENGTH} in the Content-Type",
        )
        if stated is None and SAGEMAKER_LENGTH in (request.content_type or ""):
            stated = ""  # it is malformed
    length = read_header_length(stated, body, where)
    document = parse_object(body[:length], metadata.time_limit.deadline(), hint=EXPECTED)
    return ModelRequest(
        metadata.require_modelname(),
        [{**document, BINARY: b"" if length is None else body[length:]}],
        parameters=of_sequence(document.get("parameters")),
        modelversion=parse_version(metadata.modelversion or None),
        tensors=True,
    )


def read_fields(request: Request, metadata: Metadata) -> ModelRequest:
    """Read a request to Triton's `generate`.

    Raises BadBody, DeadlineExceeded: as `read_tensors`.
    """
    deadline = metadata.time_limit.deadline()
    return ModelRequest(
        metadata.require_modelname(),
        [parse_object(request.get_data(), deadline, hint=FIELDS_EXPECTED)],
        modelversion=parse_version(metadata.modelversion or None),
        tensors=True,
        fields=True,
    )


def with_tensors(response: Response, tensors: Iterable[bytes], request: Request) -> Response:
    """Append binary tensors to the JSON of a response, in the form of the request."""
    header = response.get_data()
    response.set_data(b"".join((header, *tensors)))
    if request.mimetype == SAGEMAKER_TYPE:
        response.content_type = f"{SAGEMAKER_TYPE};{SAGEMAKER_LENGTH}={len(header)}"
    else:
        response.content_type = "application/octet-stream"
        response.headers[HEADER_LENGTH] = str(len(header))
    return response
