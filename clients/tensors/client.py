"""Any model without a client of its own: tensors in, tensors out.

A V2 body is answered with one: `{"model_name", "model_version", "outputs": […]}`. One tensor may
come and go as NumPy's file format instead. Triton's `generate` has a field for each input and
output: https://github.com/triton-inference-server/server, docs/protocol/extension_generate.md
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clients.annotations import Declared
from clients.base import Client, Environment, Payload
from clients.errors import BadPayload, BadRequest, TensorsRefused
from clients.request import SEQUENCE_NAMES
from clients.tensors.elements import binary_data, convert, json_data, rows_of
from clients.tensors.signature import (
    DATATYPES,
    DTYPES,
    Array,
    describe_tensors,
    refuse_many_texts,
    refuse_wrong_tensors,
    the_one_input,
)
from clients.tensors.v2_protocol import (
    BINARY,
    BINARY_SIZE,
    class_texts,
    for_the_model,
    parameters_of,
    read_npy,
    read_request,
    read_v2,
)
from clients.triton.server import Scalar, Signature, TensorSpec

# To write so many numbers as JSON takes 2.6 s, in which no other thread runs. With the digits of
# real numbers they are 50 MB or more, twice what SageMaker passes on.
MOST_NUMBERS = 5_000_000

V2_FIELDS = ("id", "inputs", "outputs", "parameters")


def examples_of(client: Client | type[Client]) -> tuple[Payload, ...]:
    """Return the examples of a client, the first in front; one for plain tensors may have none."""
    kind = client if isinstance(client, type) else type(client)
    found = tuple(client.examples) or tuple((client.example,) if hasattr(client, "example") else ())
    return tuple(one for one in found if one or kind.needs_example)


def name_examples(client: Client) -> list[tuple[str, Payload]]:
    """Return the examples of a client, each with what its author calls it."""
    found = examples_of(client)
    if len(found) == 1:
        return [("example", found[0])]
    return [(f"examples[{place}]", one) for place, one in enumerate(found)]


@dataclass(frozen=True)
class TensorResult:
    """The outputs of one run of a model."""

    model: str
    version: str
    outputs: Mapping[str, Array]
    request: str = ""
    classes: Collection[str] = ()
    binary: Mapping[str, bytes] = field(default_factory=dict)
    """The data of the outputs that are wanted in binary."""

    def body(self) -> dict[str, Any]:
        """Return the V2 body; NaN and infinity are left for the JSON encoder."""
        self.refuse_many([a for name, a in self.outputs.items() if name not in self.binary])
        body: dict[str, Any] = {"model_name": self.model}
        if self.version:
            body["model_version"] = self.version
        if self.request:
            body["id"] = self.request
        body["outputs"] = [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": DATATYPES.get(array.dtype, "BYTES"),
                **self.data(name, array),
            }
            for name, array in self.outputs.items()
        ]
        return body

    def refuse_many(self, arrays: Sequence[Array]) -> None:
        """Raise BadPayload where some arrays have more numbers than are written as text."""
        count = sum(array.size for array in arrays)
        if count > MOST_NUMBERS:
            raise BadPayload(
                f"the answer has {count:,} numbers; text is written for at most {MOST_NUMBERS:,}",
                hint="ask for less at once, for fewer outputs, or in binary: application/x-npy, or "
                "`binary_data` of Triton's own protocol",
            )

    def data(self, name: str, array: Array) -> dict[str, Any]:
        """Return the field with the data of an output, or with their size in binary."""
        if name in self.binary:
            return {"parameters": {BINARY_SIZE: len(self.binary[name])}}
        return {"data": class_texts(array) if name in self.classes else json_data(array)}

    def rows(self) -> list[Any]:
        """Return the outputs by rows, as axis 0 counts them."""
        self.refuse_many([*self.outputs.values()])
        if len({array.shape[:1] for array in self.outputs.values()}) != 1:
            raise BadPayload("the outputs have no rows in common", hint="ask for application/json")
        return rows_of(self.outputs)

    def npy(self) -> bytes:
        """Return the only output as a NumPy file."""
        if len(self.outputs) != 1:
            raise BadPayload(
                f"the model has {len(self.outputs)} outputs: {', '.join(self.outputs)}",
                hint="ask for application/json, or name one output with `outputs` in a V2 body",
            )
        (array,) = self.outputs.values()
        if array.dtype == np.object_:
            raise BadPayload("the output holds texts", hint="ask for application/json")
        out = io.BytesIO()
        np.save(out, np.ascontiguousarray(array), allow_pickle=False)
        return out.getvalue()


class TensorClient(Client):
    """Serves a model's tensors. It is made for a model, not found in a file."""

    modelname = ""
    declares = Declared()  # one is made for a request, too
    needs_example = False
    _without = "tensors: in JSON, or one as application/x-npy"
    example = {"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [0.5]}]}

    def __init__(
        self,
        environment: Environment,
        model: str = "",
        check: Callable[[Mapping[str, Array]], None] | None = None,
    ) -> None:
        self.model = model  # type: ignore[misc]  # of an author's class it is fixed
        self._check = check or self.check_tensors
        super().__init__(environment)

    def inference(self, payload: Payload) -> Any:
        result = self.run(payload)
        if isinstance(result, TensorResult):
            return result.body()
        return (one.body() for one in result)

    def run(self, payload: Payload) -> TensorResult | Iterator[TensorResult]:
        """Run the model on a V2 body, or on the bytes of a NumPy file in `npy`.

        Returns:
            the outputs; of a decoupled model an iterator of its answers.

        """
        if "output" in payload:
            raise BadPayload(
                "`output` is among the tensors",
                hint="POST /infer/{model} takes it beside `inputs` or `payload`",
            )
        signature = self.signature()
        if isinstance(data := payload.get("npy"), bytes):  # which JSON cannot hold
            inputs = {the_one_input(signature): read_npy(data)}
        else:
            inputs = read_v2(payload, signature)
        refuse_wrong_tensors(inputs, signature)
        self._check(inputs)
        wanted = read_request(payload, signature)
        outputs, classes = wanted.outputs, wanted.classes
        identity = payload.get("id")
        named = str(identity)[:128] if isinstance(identity, str | int) else ""
        takes_binary = isinstance(payload.get(BINARY), bytes)

        def result(answer: Mapping[str, Array], version: str = "") -> TensorResult:
            binary = {
                name: binary_data(array)
                for name, array in answer.items()
                if takes_binary and name in wanted.binary
            }
            version = version or self.request.version
            return TensorResult(self.served_by, version, answer, named, classes, binary)

        if not signature.decoupled:
            parameters = for_the_model(parameters_of(payload))
            answer = self.infer(inputs, outputs=outputs, classes=classes, parameters=parameters)
            return result(answer, getattr(answer, "version", ""))
        if classes:
            raise BadPayload(
                "`classification` is not given for a decoupled model", hint="leave it out"
            )
        if takes_binary:
            raise TensorsRefused(
                f"the model {self.served_by!r} is decoupled: it gives any number of answers",
                hint=f"POST its /generate_stream, or /infer/{self.served_by}",
            )
        return (result(answer) for answer in self.stream(inputs, outputs=outputs))


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
        named = {name: text for name, text in named.items() if text}
        return dict(sorted({**self.parameters, **named, **fields}.items()))


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


def only_result(results: Any) -> TensorResult:
    """Return the result, which may be the only one of an iterator; end the run at a second one."""
    if isinstance(results, TensorResult):
        return results
    with closing(results):
        first, second = next(results, None), next(results, None)
    if not isinstance(first, TensorResult) or second:
        raise BadRequest(
            f"`generate` expects one answer; the model gave {'several' if second else 'none'}",
            hint="POST its /generate_stream, or ask it by /invocations",
        )
    return first
