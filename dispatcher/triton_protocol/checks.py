"""What is checked or changed in a request with Triton's own body before Triton gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clients.errors import BadRequest, TensorsRefused
from clients.request import SequencePart
from clients.tensors.signature import described
from clients.triton.errors import first_line
from clients.triton.requests import refuse_no_items_or_classes, sequence_parameters
from clients.triton.server import Signature
from dispatcher.codecs.binary_tensors import named_tensors, parameters_of, with_parameters
from dispatcher.codecs.metadata import Metadata, is_sequence_id, names_sequence, read_sequence
from dispatcher.triton_protocol.connection import TritonResponse


def in_sequence(
    document: Mapping[str, Any], metadata: Metadata, model: str, signature: Signature
) -> tuple[SequencePart | None, dict[str, Any]]:
    """Return the sequence of a request, and the parameters that Triton gets in place of its own.

    Raises:
        BadParameter: the sequence cannot be used.

    """
    parameters = parameters_of(document)
    if not (
        metadata.owner
        or metadata.session
        or names_sequence({}, metadata)
        or is_sequence_id(parameters.get("sequence_id"))
    ):  # any other id is refused by Triton
        return None, {}
    if (part := read_sequence(parameters, metadata)) is None:
        return None, {}
    return part, dict(sequence_parameters(part, model, signature))


def changed(document: Mapping[str, Any], header: bytes, parameters: Mapping[str, Any]) -> bytes:
    """Return the JSON of a request with other values of some parameters.

    Args:
        document: what it says.
        header: its bytes, which may have millions of numbers: they are not written again where
            the request has no parameters.
        parameters: by name.

    """
    if "parameters" not in document and document and header.startswith(b"{"):
        return b'{"parameters":' + json.dumps(parameters).encode() + b"," + header[1:]
    if document.get("parameters", {}) != parameters_of(document):
        return header  # they are no object, as Triton will say
    return with_parameters(document, parameters)


def refuse_what_harms(document: Mapping[str, Any], signature: Signature) -> None:
    """Raise TensorsRefused for requests that Triton 2.51 never answers, or that end it.

    Args:
        document: the JSON of the request.
        signature: the model's.

    """
    shapes = [
        (name, shape)
        for name, tensor in named_tensors(document, "inputs")
        if isinstance(shape := tensor.get("shape"), list)
    ]
    classes = [
        name
        for name, tensor in named_tensors(document, "outputs")
        if isinstance(given := tensor.get("parameters"), dict) and given.get("classification")
    ]
    refuse_no_items_or_classes(shapes, classes, signature)
    batch = bool(signature.max_batch_size)
    for spec in signature.outputs:
        if spec.name in classes and -1 in spec.shape[batch:]:  # it ends with SIGSEGV
            raise TensorsRefused(
                f"classes are wanted of the output `{spec.name}`, which may be empty",
                hint="POST /infer/{model} answers this request, in JSON",
            )


def refuse_generate(document: Mapping[str, Any], model: str, signature: Signature) -> None:
    """Raise BadRequest for what `generate` cannot do: name a sequence, read a name with NUL."""
    if signature.sequence:
        raise BadRequest(
            f"the model {model!r} keeps state, and `generate` names no sequence",
            hint='POST its /infer with "parameters": {"sequence_id": 7, "sequence_start": true}, '
            "or ask it by /invocations",
        )
    names = [*document, *parameters_of(document)]
    if wrong := next((name for name in names if "\0" in name), ""):
        raise BadRequest(
            f"the name {wrong[:100]!r} has a character NUL",
            hint=f"leave it out; {tensors_of(signature)}",
        )


def refuse_no_answer(came: TritonResponse) -> TritonResponse:
    """Return what `generate` gave.

    Raises:
        BadRequest: the model gave no answer or several, for which Triton's status is 200.

    """
    if came.body.startswith(b'{"error":"generate expects'):
        text = first_line(json.loads(came.body)["error"])
        raise BadRequest(text, hint="POST its /generate_stream, or ask it by /invocations")
    return came


@contextmanager
def naming_tensors(signature: Signature) -> Iterator[None]:
    """Say which tensors a model has where it refuses those that came."""
    try:
        yield
    except TensorsRefused as error:
        raise TensorsRefused(error.message, hint=error.hint or tensors_of(signature)) from error


def tensors_of(signature: Signature) -> str:
    """Return which tensors a model takes and gives, in words."""
    takes, gives = described(signature.inputs), described(signature.outputs)
    return f"the model takes {takes or 'nothing'} and gives {gives or 'nothing'}"
