"""Any model by Triton's `generate`: JSON with a field for each input, and for each output.

https://github.com/triton-inference-server/server, docs/protocol/extension_generate.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clients.base import Payload
from clients.errors import BadPayload, BadRequest, TensorsRefused
from clients.request import SEQUENCE_NAMES
from clients.tensors.client import TensorClient, TensorResult
from clients.tensors.elements import convert, json_data
from clients.tensors.signature import (
    DTYPES,
    Array,
    describe_tensors,
    refuse_many_texts,
    refuse_wrong_tensors,
)
from clients.tensors.v2_protocol import for_the_model, parameters_of
from clients.triton.server import Scalar, Signature, TensorSpec


@dataclass(frozen=True)
class GeneratedResult(TensorResult):
    """The outputs of one run, each a field."""

    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    """Those that the model gave with its outputs."""

    def body(self) -> dict[str, Any]:
        """Return the fields in the order of Triton, which leaves out the list around one element.

        NaN and infinity are left for the JSON encoder.
        """
        self.refuse_many([*self.outputs.values()])
        flat = {name: json_data(array) for name, array in self.outputs.items()}
        fields = {name: data[0] if len(data) == 1 else data for name, data in flat.items()}
        named = {"id": self.request, "model_name": self.model, "model_version": self.version}
        fields |= {**self.parameters, **{name: text for name, text in named.items() if text}}
        return dict(sorted(fields.items()))


class GenerateClient(TensorClient):
    """Serves a model's tensors as fields. It is made for a request."""

    def run(self, payload: Payload) -> TensorResult | Iterator[TensorResult]:
        """Run the model on the fields of a JSON object.

        Returns:
            the outputs; of a decoupled model an iterator of its answers.

        """
        signature = self.signature()
        inputs, parameters = read_fields(payload, self.served_by, signature)
        refuse_wrong_tensors(inputs, signature)
        self._check(inputs)

        def result(answer: Mapping[str, Array]) -> TensorResult:
            version = getattr(answer, "version", "") or self.request.version
            gave = getattr(answer, "parameters", {})
            identity = str(payload.get("id", ""))
            return GeneratedResult(self.served_by, version, answer, identity, parameters=gave)

        if signature.decoupled:
            return (result(one) for one in self.stream(inputs, parameters=parameters))
        return result(self.infer(inputs, parameters=parameters))


def read_fields(
    document: Payload, model: str, signature: Signature
) -> tuple[dict[str, Array], dict[str, Scalar]]:
    """Return the inputs and the parameters that are fields of a document, or of `parameters` in it.

    Raises BadPayload, TensorsRefused, BadRequest: one of them cannot be taken.
    """
    inputs = {spec.name: spec for spec in signature.inputs}
    given = [(name, value) for name, value in document.items() if name != "parameters"]
    given += parameters_of(document).items()
    others = {name: value for name, value in given if name not in inputs}
    if signature.sequence or not others.keys().isdisjoint(SEQUENCE_NAMES):
        raise BadRequest(
            "`generate` names no sequence"
            + (f", and the model {model!r} keeps state" if signature.sequence else ""),
            hint='POST its /infer with "parameters": {"sequence_id": 7, "sequence_start": true}, '
            "or ask it by /invocations"
            if signature.sequence
            else f"the model {model!r} keeps no state: leave {', '.join(SEQUENCE_NAMES)} out",
        )
    takes, gives = describe_tensors(signature.inputs), describe_tensors(signature.outputs)
    known = f"; the model takes {takes or 'nothing'} and gives {gives or 'nothing'}"
    parameters = for_the_model(others, also=known)
    arrays: dict[str, Array] = {}
    for name, value in given:
        if name in arrays:
            raise BadPayload(f"`{name}` is given twice", hint="send each input once")
        if name in inputs:
            arrays[name] = field_array(value, inputs[name])
    return arrays, parameters


def field_array(value: object, spec: TensorSpec) -> Array:
    """Return an input, which came as one element or in a flat list; `null` as NaN.

    The last axis of any size takes all elements, and others have one.
    """
    flat = value if isinstance(value, list) else [value]
    if spec.datatype not in DTYPES:
        raise BadPayload(
            f"`{spec.name}` is {spec.datatype}, which has no form in JSON",
            hint="send it to /infer in binary, behind the JSON",
        )
    refuse_many_texts(spec, len(flat))
    array = convert(flat, spec.datatype, spec.name)
    last = max((axis for axis, size in enumerate(spec.shape) if size == -1), default=-1)
    shape = [1 if size == -1 and axis != last else size for axis, size in enumerate(spec.shape)]
    with suppress(ValueError):
        if flat:
            return array.reshape(shape)
    raise TensorsRefused(
        f"`{spec.name}` has {len(flat)} elements; the model takes {list(spec.shape)}"
    )


def only_result(results: Sequence[TensorResult]) -> TensorResult:
    if len(results) != 1:
        raise BadRequest(
            f"`generate` expects the model to give one answer, and it gave {len(results)}",
            hint="POST its /generate_stream, or ask it by /invocations",
        )
    return results[0]
