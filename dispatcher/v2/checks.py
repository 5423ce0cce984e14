"""What is checked or changed in a request to Triton's `generate`, and in its answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clients.errors import BadPayload, BadRequest, TensorsRefused
from clients.request import SEQUENCE_NAMES
from clients.tensors.elements import convert
from clients.tensors.signature import DTYPES, describe_tensors, refuse_many_texts
from clients.tensors.v2_protocol import for_the_model, parameters_of
from clients.triton.errors import first_line
from clients.triton.server import Scalar, Signature, TensorSpec
from dispatcher.codecs.responses import encode


def check_fields(
    document: Mapping[str, Any], model: str, signature: Signature, own: Mapping[str, Scalar]
) -> bytes:
    """Return the JSON of a request to `generate` as Triton gets it, with parameters of our own.

    Raises BadPayload, TensorsRefused: an input or a parameter cannot be taken.
    """
    inputs = {spec.name: spec for spec in signature.inputs}
    given = {*document, *parameters_of(document)} - inputs.keys()
    if signature.sequence or not given.isdisjoint(SEQUENCE_NAMES):
        raise BadRequest(
            "`generate` names no sequence"
            + (f", and the model {model!r} keeps state" if signature.sequence else ""),
            hint='POST its /infer with "parameters": {"sequence_id": 7, "sequence_start": true}, '
            "or ask it by /invocations"
            if signature.sequence
            else f"the model {model!r} keeps no state: leave {', '.join(SEQUENCE_NAMES)} out",
        )

    def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in fields.items() if name not in inputs}
        for_the_model(others, also=f"; {tensors_of(signature)}")
        return {
            name: field_data(value, inputs[name]) if name in inputs else value
            for name, value in fields.items()
        }

    fields = checked({name: value for name, value in document.items() if name != "parameters"})
    parameters = checked(parameters_of(document))
    return json.dumps({**fields, "parameters": {**parameters, **own}}).encode()


def field_data(value: object, spec: TensorSpec) -> list[Any]:
    """Return the elements of an input, which came as one or in a flat list; `null` as NaN."""
    flat = value if isinstance(value, list) else [value]
    if spec.datatype not in DTYPES:
        raise BadPayload(
            f"`{spec.name}` is {spec.datatype}, which has no form in JSON",
            hint="send it to /infer in binary, behind the JSON",
        )
    refuse_many_texts(spec, len(flat))
    array = convert(flat, spec.datatype, spec.name)
    known = math.prod(size for size in spec.shape if size != -1)
    if not flat or not known or len(flat) % known or (-1 not in spec.shape and len(flat) != known):
        raise TensorsRefused(
            f"`{spec.name}` has {len(flat)} elements; the model takes {list(spec.shape)}"
        )
    # Triton reads a long whole number less exactly than the float that it is.
    return flat if spec.datatype == "BYTES" else array.tolist()


def read_answer(body: bytes) -> Any:
    """Return the document that `generate` gave."""
    if body.startswith(b'{"error":"generate expects'):
        text = first_line(json.loads(body)["error"])
        raise BadRequest(text, hint="POST its /generate_stream, or ask it by /invocations")
    return json.loads(body.decode(errors="replace"))


def as_json(line: bytes) -> bytes:
    """Return a line of an event without NaN and Infinity, which are not JSON."""
    if not line.startswith(b"data: "):
        return line
    document = json.loads(line.removeprefix(b"data: ").decode(errors="replace"))
    return f"data: {encode(document)[0]}\n".encode()


@contextmanager
def naming_tensors(signature: Signature) -> Iterator[None]:
    """Say which tensors a model has where it refuses those that came."""
    try:
        yield
    except TensorsRefused as error:
        raise TensorsRefused(error.message, hint=error.hint or tensors_of(signature)) from error


def tensors_of(signature: Signature) -> str:
    takes, gives = describe_tensors(signature.inputs), describe_tensors(signature.outputs)
    return f"the model takes {takes or 'nothing'} and gives {gives or 'nothing'}"
