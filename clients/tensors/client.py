"""Any model without a client of its own: tensors in, tensors out.

Bodies are those of the Open Inference Protocol, version 2 (kserve.github.io/website, "Open
Inference Protocol (V2) - REST"): `{"inputs": [{"name", "shape", "datatype", "data"}]}` is answered
with `{"model_name", "model_version", "outputs": […]}`. One tensor may come and go as NumPy's file
format instead.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pybase64 import b64decode

from clients.base import Client, Environment, Payload
from clients.errors import BadPayload, TensorsRefused, UnsupportedMedia
from clients.request import Media
from clients.tensors.nested import flattened
from clients.tensors.quoting import brief, encodable
from clients.tensors.scores import NotFinite
from clients.triton.server import Signature, TensorSpec

Array = npt.NDArray[Any]

numpy_format: Any = np.lib.format  # it has no types

DTYPES: Mapping[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

MOST_DIMENSIONS = 32  # NumPy's own limit
# Of an answer in JSON: to write so many takes 2.6 s, in which no other thread runs. With the digits
# of real numbers it is 50 MB or more, twice what the platform passes on.
MOST_NUMBERS = 5_000_000
# Of sizes beside a 0: an array of no numbers costs nothing here, but a model that sums over the 0
# makes one of all others.
MOST_OF_NOTHING = 2**20

V2_FIELDS = ("id", "inputs", "outputs", "parameters")
# What the reader of JSON makes of these words, and of nothing else: 1e400 is another object.
INFINITIES: list[float] = json.loads("[Infinity, -Infinity]")

# MLServer's names for how elements are written: these are as they are without a name.
AS_THEY_ARE = ("np", "str")
BASE64 = "base64"

V2_EXPECTED = 'expected {"inputs": [{"name": "…", "shape": […], "datatype": "FP32", "data": […]}]}'


def has_example(client: Client) -> bool:
    """Whether a client has an example to be asked: one for plain tensors may have none."""
    return bool(client.example) or not isinstance(client, TensorClient)


@dataclass(frozen=True)
class TensorResult:
    """The outputs of one run of a model."""

    model: str
    version: str
    outputs: Mapping[str, Array]
    request: str = ""
    classes: Collection[str] = ()

    def body(self) -> dict[str, Any]:
        """Return the V2 body; numbers that JSON cannot hold are still NaN or infinite in it.

        Raises:
            BadPayload: there are too many of them.

        """
        count = sum(array.size for array in self.outputs.values())
        if count > MOST_NUMBERS:
            raise BadPayload(
                f"the answer has {count:,} numbers; JSON is written for at most {MOST_NUMBERS:,}",
                hint="ask for less at once, for fewer outputs, or for application/x-npy",
            )
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
                "data": class_texts(array) if name in self.classes else json_data(array),
            }
            for name, array in self.outputs.items()
        ]
        return body

    def npy(self) -> bytes:
        """Return the one output as a NumPy file.

        Raises:
            BadPayload: the model has several outputs, or one of texts.

        """
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
    """Serves one model by its tensors alone. Made for a model, not found in a file.

    Args:
        environment: as for any client.
        model: its name in the repository.
        check: as `Client.check_tensors`; that of the model's own client, where it has one.

    """

    modelname = ""
    example = {"inputs": [{"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [0.5]}]}

    def __init__(
        self,
        environment: Environment,
        model: str = "",
        check: Callable[[Mapping[str, Array]], None] | None = None,
    ) -> None:
        self._model = model or self.modelname
        self._check = check or self.check_tensors
        super().__init__(environment)

    def triton_model(self) -> str:
        return self._model

    def payload_of(self, media: Media) -> Payload:
        raise UnsupportedMedia(
            f"a {media.kind} came",
            hint="the model takes tensors: in JSON, or one as application/x-npy",
        )

    def inference(self, payload: Payload) -> Any:
        return self.run(payload).body()

    def run(self, payload: Payload) -> TensorResult:
        """Run the model on a V2 body, or on the bytes of a NumPy file in `npy`.

        Raises:
            TensorsRefused: the tensors are not the model's; Triton was not asked.
            BadPayload: the body is no V2 body, or the bytes no NumPy file.

        """
        signature = self.signature()
        if isinstance(data := payload.get("npy"), bytes):  # which JSON cannot hold
            inputs = {the_one_input(signature): read_npy(data)}
        else:
            inputs = read_v2(payload)
        refuse_wrong_tensors(inputs, signature)
        self._check(inputs)
        outputs, classes = wanted_outputs(payload, signature)
        answer = self.infer(inputs, outputs=outputs, classes=classes)
        identity = payload.get("id")
        named = str(identity)[:128] if isinstance(identity, str | int) else ""
        return TensorResult(self._model, self.request.version, answer, named, classes)


def read_v2(payload: Payload) -> dict[str, Array]:
    """Return the arrays of a V2 body, by name.

    Raises:
        BadPayload: it is no such body, or a tensor's data are not as it says.

    """
    content_type(payload, "", (*AS_THEY_ARE, "pd"))
    tensors = payload.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise BadPayload(f"`inputs` is {brief(tensors)}", hint=V2_EXPECTED)
    arrays: dict[str, Array] = {}
    for place, tensor in enumerate(tensors):
        where = f"inputs[{place}]"
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise BadPayload(f"`{where}` is {brief(tensor)}", hint=V2_EXPECTED)
        if tensor["name"] in arrays:
            raise BadPayload(f"`{where}`: the name {tensor['name']!r} stands there twice")
        arrays[tensor["name"]] = read_tensor(tensor, where)
    return arrays


def read_tensor(tensor: Mapping[str, Any], where: str) -> Array:
    datatype, shape, data = tensor.get("datatype"), tensor.get("shape"), tensor.get("data")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise BadPayload(
            f"`{where}.datatype` is {brief(datatype)}", hint=f"expected {', '.join(DTYPES)}"
        )
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 2**31 for n in shape)
    ):
        raise BadPayload(
            f"`{where}.shape` is {brief(shape)}", hint="expected sizes, such as [1, 3]"
        )
    if not isinstance(data, list):
        raise BadPayload(
            f"`{where}.data` is {brief(data)}",
            hint="expected a list of numbers or texts, flat or nested; binary data are not taken",
        )
    flat = flattened(data)
    if len(flat) != math.prod(shape):
        raise BadPayload(
            f"`{where}` has {len(flat)} elements; its shape {shape} wants {math.prod(shape)}"
        )
    array = converted(flat, datatype, where)
    if content_type(tensor, f"{where}.", (*AS_THEY_ARE, BASE64)) == BASE64:
        array = from_base64(array, where)
    if array.dtype.kind == "f" and np.isinf(array).any():
        refuse_overflow(flat, datatype, where)
    try:
        return array.reshape(shape)
    except ValueError as error:  # nothing at all, in a shape beyond any memory
        raise BadPayload(f"`{where}.shape` {shape} is too large") from error


def content_type(stated: Mapping[str, Any], where: str, taken: Sequence[str]) -> str:
    """Return the content type in the `parameters` of a tensor or a body; nothing where it has none.

    Raises:
        BadPayload: it is not taken there.

    """
    parameters = stated.get("parameters")
    said = parameters.get("content_type") if isinstance(parameters, dict) else None
    if said not in (None, *taken):
        raise BadPayload(
            f"`{where}parameters.content_type` is {brief(said)}",
            hint=f"expected {' or '.join(taken)}; leave it out for numbers and texts as they are",
        )
    return said or ""


def from_base64(array: Array, where: str) -> Array:
    """Return the bytes that the texts of a tensor encode.

    Raises:
        BadPayload: they are no texts, or one is not base64.

    """
    if array.dtype != np.object_:
        raise BadPayload(
            f"`{where}.parameters.content_type` is '{BASE64}', but its datatype is no BYTES",
            hint="expected BYTES, and a text of base64 for each element; leave content_type out "
            "for numbers",
        )
    try:
        decoded = [b64decode(element, validate=True) for element in array]
    except ValueError as error:
        raise BadPayload(
            f"`{where}.data` has an element that is not base64: {error}",
            hint="leave parameters.content_type out where elements are texts as they are",
        ) from error
    return np.array(decoded, np.object_)


def refuse_overflow(flat: Sequence[float], datatype: str, where: str) -> None:
    """Refuse a number such as 1e400, which is infinite when it was read. `Infinity` is taken.

    Raises:
        BadPayload: there is one.

    """
    for number in flat:
        if math.isinf(number) and not any(number is one for one in INFINITIES):
            most = float(np.finfo(DTYPES[datatype]).max)  # type: ignore[arg-type]
            raise BadPayload(
                f"`{where}.data` has a number that does not fit into {datatype}",
                hint=f"expected {-most:g} to {most:g}, or Infinity",
            )


def converted(flat: list[Any], datatype: str, where: str) -> Array:
    """Return the elements as an array of `datatype`, shape [elements].

    Raises:
        BadPayload: an element is of another type, or does not fit.

    """
    dtype = DTYPES[datatype]
    kinds: tuple[type, ...] = (int, float)
    if datatype == "BYTES":
        kinds = (str,)
    elif datatype == "BOOL":
        kinds = (bool,)
    elif "INT" in datatype:
        kinds = (int,)
    for element in flat:
        if not isinstance(element, kinds) or (isinstance(element, bool) and kinds != (bool,)):
            raise BadPayload(f"`{where}.data` has {brief(element)}", hint=f"expected {datatype}")
    if datatype == "BYTES":
        return texts(flat, where)
    if "INT" in datatype and flat:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        if min(flat) < limits.min or max(flat) > limits.max:
            raise BadPayload(
                f"`{where}.data` has a number that does not fit into {datatype}",
                hint=f"expected {limits.min} to {limits.max}",
            )
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype)
    except (FloatingPointError, OverflowError) as error:
        farthest = max((number for number in flat if abs(number) < math.inf), key=abs)
        most = float(np.finfo(dtype).max)  # type: ignore[arg-type]
        raise BadPayload(
            f"`{where}.data` has {brief(farthest)}, which does not fit into {datatype}",
            hint=f"expected {-most:g} to {most:g}",
        ) from error


def texts(flat: list[str], where: str) -> Array:
    if not all(map(encodable, flat)):
        raise BadPayload(f"`{where}.data` has a text that UTF-8 cannot hold")
    return np.array([element.encode() for element in flat], np.object_)


def read_npy(data: bytes) -> Array:
    """Return the array of a NumPy file. Nothing in it is ever unpickled.

    Raises:
        BadPayload: it is no such file, is cut off, or holds Python objects.

    """
    file = io.BytesIO(data)
    try:
        version, _ = numpy_format.read_magic(file)
        read = {1: numpy_format.read_array_header_1_0, 2: numpy_format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    except Exception as error:  # whatever NumPy's reader of a header lets out
        raise BadPayload(
            f"the body is no NumPy file: {len(data)} bytes that begin with {data[:8]!r}",
            hint="expected what numpy.save writes, format 1.0 or 2.0",
        ) from error
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise BadPayload(f"the array has the shape {brief(list(shape))}")
    if dtype.hasobject or dtype not in DATATYPES:
        hint = f"expected {', '.join(DTYPES)}, no objects"
        if (little := dtype.newbyteorder("<")) in DATATYPES and not dtype.hasobject:
            hint = f"send it little-endian: array.astype('{little.str}')"
        raise BadPayload(f"the array is of {dtype}", hint=hint)
    # Compared before anything is made: a header of 100 bytes may promise terabytes.
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) - file.tell() != wanted:
        raise BadPayload(
            f"the array of shape {list(shape)} takes {wanted} bytes; {len(data) - file.tell()} came"
        )
    array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def the_one_input(signature: Signature) -> str:
    if len(signature.inputs) != 1:
        raise TensorsRefused(
            f"one array came; the model has the inputs {described(signature.inputs)}",
            hint="send them by name in a V2 body",
        )
    return signature.inputs[0].name


def refuse_wrong_tensors(inputs: Mapping[str, Array], signature: Signature) -> None:
    """Compare tensors with the model's own.

    Raises:
        TensorsRefused: a name, type or shape is not the model's.

    """
    known = {spec.name: spec for spec in signature.inputs}
    for name, array in inputs.items():
        if name not in known:
            raise TensorsRefused(
                f"there is no input `{name}`", hint=f"the model has {described(signature.inputs)}"
            )
        sizes = [size for size in array.shape if size]
        if not array.size and math.prod(sizes) > MOST_OF_NOTHING:
            raise TensorsRefused(
                f"input `{name}` has no numbers, but shape {list(array.shape)}",
                hint=f"besides a 0, sizes may make {MOST_OF_NOTHING} at most",
            )
        spec, datatype = known[name], DATATYPES.get(array.dtype, str(array.dtype))
        if not fits(array.shape, spec.shape) or datatype != spec.datatype:
            raise TensorsRefused(
                f"input `{name}` wants {spec.datatype} {list(spec.shape)}; "
                f"you sent {datatype} {list(array.shape)}",
                hint="; ".join(
                    filter(
                        None,
                        [
                            another_type(datatype, spec.datatype),
                            one_axis_more(array.shape, spec.shape, signature.max_batch_size),
                        ],
                    )
                ),
            )
        if signature.max_batch_size and array.shape[0] > signature.max_batch_size:
            raise TensorsRefused(
                f"input `{name}` has {array.shape[0]} items",
                hint=at_most(signature.max_batch_size),
            )
    missing = [spec for spec in signature.inputs if spec.name not in inputs and not spec.optional]
    if missing:
        raise TensorsRefused(
            f"input `{missing[0].name}` is missing",
            hint=f"the model has {described(signature.inputs)}",
        )
    if signature.max_batch_size and len({len(array) for array in inputs.values()}) > 1:
        raise TensorsRefused("the inputs differ in their first dimension, the batch")


def fits(came: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array is of a shape in which -1 stands for any size."""
    return len(came) == len(wanted) and all(
        one in (-1, other) for one, other in zip(wanted, came, strict=True)
    )


def another_type(came: str, wanted: str) -> str:
    """Return a hint where an array is of another type than a model's input."""
    if came == wanted or wanted not in DTYPES:
        return ""
    if wanted == "BYTES":
        return 'send texts in a V2 body, with "datatype": "BYTES"'
    numpy_name = np.dtype(DTYPES[wanted]).name
    return f'send it as "datatype": "{wanted}" in JSON, or array.astype("{numpy_name}") as npy'


def one_axis_more(came: Sequence[int], wanted: Sequence[int], most: int) -> str:
    """Return a hint where an array lacks one axis of size 1, that of the batch above all."""
    for shape in ([1, *came], [*came, 1]):
        if fits(shape, wanted):
            items = f"; the first axis counts items, and {at_most(most)}" if most else ""
            return f"send the same data as {shape}{items}"
    return ""


def at_most(most: int) -> str:
    """Return a hint on how many items a model takes."""
    return (
        f"the model takes at most {most} at once; more: a larger max_batch_size in config.pbtxt, "
        "or 0 where its first axis is no batch"
    )


def zeros(signature: Signature) -> dict[str, Array]:
    """Return the smallest inputs that a model takes: zeros, and 1 for every size that may vary.

    Raises:
        TensorsRefused: an input is of a type that numpy does not have.

    """
    for spec in signature.inputs:
        if spec.datatype not in DTYPES and not spec.optional:
            raise TensorsRefused(
                f"input `{spec.name}` is {spec.datatype}, which is not served",
                hint=f"served are {', '.join(DTYPES)}",
            )
    return {
        spec.name: np.full(
            [max(1, size) for size in spec.shape],
            b"" if spec.datatype == "BYTES" else 0,
            DTYPES[spec.datatype],
        )
        for spec in signature.inputs
        if not spec.optional
    }


def described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"`{spec.name}` {spec.datatype} {list(spec.shape)}" for spec in specs)


def wanted_outputs(payload: Payload, signature: Signature) -> tuple[list[str], dict[str, int]]:
    """Return the outputs a V2 body asks for, and how many classes of which."""
    asked = payload.get("outputs") or []
    known = [spec.name for spec in signature.outputs]
    if not isinstance(asked, list):
        raise BadPayload(f"`outputs` is {brief(asked)}", hint='expected [{"name": "…"}]')
    names: list[str] = []
    classes: dict[str, int] = {}
    for place, output in enumerate(asked):
        name = output.get("name") if isinstance(output, dict) else None
        if name not in known:
            what = f"`outputs[{place}]` is {brief(output)}"
            if isinstance(name, str):
                what = f"`outputs[{place}]`: there is no output {brief(name)}"
            raise BadPayload(what, hint=f"the model has {', '.join(known)}")
        if name in names:
            raise BadPayload(f"`outputs[{place}]`: {name!r} stands there twice")
        names.append(name)
        content_type(output, f"outputs[{place}].", AS_THEY_ARE)
        parameters = output.get("parameters")
        count = parameters.get("classification") if isinstance(parameters, dict) else None
        if count is not None:
            if type(count) is not int or not 1 <= count < 2**31:
                raise BadPayload(f"`outputs[{place}].parameters.classification` is {brief(count)}")
            classes[name] = count
    return names, classes


def class_texts(array: Array) -> list[Any]:
    """Return an output's best classes, as `clients.tensors.classes` writes them."""
    texts: list[str] = json_data(array)
    return [NotFinite(math.nan, one) if one.startswith("null:") else one for one in texts]


def json_data(array: Array) -> list[Any]:
    """Return the elements in order, as JSON has them; bytes become text."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype == np.object_ or array.dtype.kind == "S":
        return [e.decode(errors="replace") if isinstance(e, bytes) else str(e) for e in flat]
    return flat
