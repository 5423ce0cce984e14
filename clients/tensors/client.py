"""Any model without a client of its own: tensors in, tensors out.

A V2 body is answered with one: `{"model_name", "model_version", "outputs": […]}`. One tensor may
come and go as NumPy's file format instead.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clients.annotations import Declared
from clients.base import Client, Environment, Payload
from clients.errors import BadPayload, TensorsRefused
from clients.tensors.elements import binary_data, json_data, rows_of
from clients.tensors.signature import DATATYPES, Array, refuse_wrong_tensors, the_one_input
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
