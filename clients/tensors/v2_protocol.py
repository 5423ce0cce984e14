"""Bodies of the Open Inference Protocol (V2), and NumPy's file format, as arrays.

https://kserve.github.io/website, "Open Inference Protocol (V2) - REST"
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clients.base import Payload
from clients.errors import BadPayload
from clients.request import SEQUENCE_NAMES
from clients.tensors.elements import BASE64, convert, flatten_as, from_base64, from_bytes, json_data
from clients.tensors.quoting import brief, encodable, unexpected
from clients.tensors.scores import NotFinite
from clients.tensors.signature import DATATYPES, DTYPES, Array, input_named, refuse_wrong_tensor
from clients.triton.server import Scalar, Signature

numpy_format: Any = np.lib.format  # it has no types

MOST_DIMENSIONS = 32  # NumPy's own limit

BINARY: Final = "binary"  # a field of a payload; JSON has no bytes
BINARY_SIZE: Final = "binary_data_size"
SHARED_MEMORY: Final = "shared_memory"  # how the names of its parameters begin

# What the parameters of a body say to the server, not to the model.
OF_PROTOCOL = ("content_type", "binary_data_output", *SEQUENCE_NAMES)

# MLServer's content types for elements that are written as they are.
AS_THEY_ARE = ("np", "str")

V2_EXPECTED = '{"inputs": [{"name": "…", "shape": […], "datatype": "FP32", "data": […]}]}'


def read_v2(payload: Payload, signature: Signature) -> dict[str, Array]:
    """Return the arrays of a V2 body, by name.

    Its field `binary`, of bytes, has the tensors whose data are not in the JSON.
    Raises BadPayload: it is no V2 body, or a tensor's data do not match its shape and type;
    TensorsRefused: the model has no input of a tensor's name, type and shape.
    """
    content_type(payload, "", (*AS_THEY_ARE, "pd"))
    tensors = payload.get("inputs")
    if not isinstance(tensors, list) or not tensors:
        raise unexpected("inputs", tensors, V2_EXPECTED)
    binary = payload.get(BINARY)
    rest = memoryview(binary if isinstance(binary, bytes) else b"")
    arrays: dict[str, Array] = {}
    for place, tensor in enumerate(tensors):
        where = f"inputs[{place}]"
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise unexpected(where, tensor, V2_EXPECTED)
        if tensor["name"] in arrays:
            raise BadPayload(
                f"`{where}`: the name {brief(tensor['name'])} is given twice",
                hint="send each input once",
            )
        # Before its data are read: there may be 300,000 tensors, or millions of texts.
        refuse_wrong_tensor(
            input_named(tensor["name"], signature), *type_and_shape(tensor, where), signature
        )
        size = parameters_of(tensor, f"{where}.").get(BINARY_SIZE)
        if size is not None and (type(size) is not int or not 0 <= size <= len(rest)):
            raise BadPayload(
                f"`{where}.parameters.{BINARY_SIZE}` is {brief(size)}; behind the JSON and the "
                f"tensors before it {len(rest)} bytes came",
                hint="expected how many bytes the tensor has there, or `data` in the JSON",
            )
        arrays[tensor["name"]] = read_tensor(tensor, where, None if size is None else rest[:size])
        rest = rest[size or 0 :]
    if rest:
        raise BadPayload(
            f"behind the JSON {len(rest)} bytes more came than `{BINARY_SIZE}` of the inputs says"
        )
    return arrays


def type_and_shape(tensor: Mapping[str, Any], where: str) -> tuple[str, list[int]]:
    """Return the datatype and the shape of one tensor, as it states them."""
    datatype, shape = tensor.get("datatype"), tensor.get("shape")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise unexpected(f"{where}.datatype", datatype, ", ".join(DTYPES))
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and 0 <= n < 2**31 for n in shape)
    ):
        expected = f"sizes below 2^31, such as [1, 3]; at most {MOST_DIMENSIONS}"
        raise unexpected(f"{where}.shape", shape, expected)
    return datatype, shape


def read_tensor(tensor: Mapping[str, Any], where: str, raw: memoryview | None) -> Array:
    """Return one tensor; `raw` is its data where they are not in the JSON."""
    datatype, shape, data = tensor["datatype"], tensor["shape"], tensor.get("data")
    if (raw is None) != isinstance(data, list) or (raw is not None and data is not None):
        expected = "a list of numbers or texts, flat or nested as the shape, or "
        expected += f"`parameters.{BINARY_SIZE}` and bytes behind the JSON"
        raise unexpected(f"{where}.data", data, expected)
    said = content_type(tensor, f"{where}.", (*AS_THEY_ARE, BASE64))
    if raw is None:
        flat, came = flatten_as(shape, data or [], f"{where}.data")
        refuse_other_count(len(flat), shape, where)
        array = convert(flat, datatype, f"{where}.data", came)
        array = from_base64(array, where) if said == BASE64 else array
    else:
        array = from_bytes(raw, datatype, math.prod(shape), where)
        refuse_other_count(len(array), shape, where)
    return array.reshape(shape)


def refuse_other_count(count: int, shape: Sequence[int], where: str) -> None:
    """Raise BadPayload where a tensor has more or fewer elements than its shape."""
    if count != math.prod(shape):
        raise BadPayload(
            f"`{where}` has {count} elements; its shape {brief(shape)} wants {math.prod(shape)}"
        )


def parameters_of(stated: Mapping[str, Any], where: str = "") -> Mapping[str, Any]:
    parameters = stated.get("parameters")
    if not isinstance(parameters, dict | None):
        raise unexpected(f"{where}parameters", parameters, "an object")
    if shared := next((name for name in parameters or () if name.startswith(SHARED_MEMORY)), ""):
        raise BadPayload(
            f"`{where}parameters` has {brief(shared)}: shared memory is not taken",
            hint="send tensors in the body, and receive them in the response",
        )
    return parameters or {}


def content_type(stated: Mapping[str, Any], where: str, taken: Sequence[str]) -> str:
    """Return the content type in the `parameters` of a tensor or a body, if any."""
    said = parameters_of(stated, where).get("content_type")
    if said not in (None, *taken):
        expected = f"{' or '.join(taken)}; leave it out for numbers and texts as they are"
        raise unexpected(f"{where}parameters.content_type", said, expected)
    return said or ""


def for_the_model(parameters: Mapping[str, Any], also: str = "") -> dict[str, Scalar]:
    """Return those of a body's parameters that the model gets; `also` is for the hint."""
    given = {name: value for name, value in parameters.items() if name not in OF_PROTOCOL}
    for name, value in given.items():
        if "\0" in name or not encodable(name) or name.startswith("triton_"):
            raise BadPayload(f"no parameter may have the name {brief(name)}", hint="leave it out")
        if (
            not isinstance(value, str | int | float)
            or (isinstance(value, str) and not encodable(value))
            or (isinstance(value, int) and not -(2**63) <= value < 2**63)
        ):
            raise BadPayload(
                f"the parameter {brief(name)} is {brief(value)}",
                hint=f"expected a text, a number of 64 bits, true or false{also}",
            )
    return given


def read_npy(data: bytes) -> Array:
    """Return the array of a NumPy file; nothing is unpickled."""
    file = io.BytesIO(data)
    try:
        version, _ = numpy_format.read_magic(file)
        read = {1: numpy_format.read_array_header_1_0, 2: numpy_format.read_array_header_2_0}
        shape, fortran, dtype = read[version](file)
    except Exception as error:  # NumPy's reader raises many kinds
        raise BadPayload(
            f"the body is no NumPy file: {len(data)} bytes that begin with {data[:8]!r}",
            hint="expected what numpy.save writes, format 1.0 or 2.0",
        ) from error
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise BadPayload(
            f"the array has the shape {brief(list(shape))}",
            hint=f"expected at most {MOST_DIMENSIONS} sizes, none below 0",
        )
    if dtype.hasobject or dtype not in DATATYPES:
        hint = f"expected {', '.join(DTYPES)}, no objects"
        if (little := dtype.newbyteorder("<")) in DATATYPES and not dtype.hasobject:
            hint = f"send it little-endian: array.astype('{little.str}')"
        raise BadPayload(f"the array is of {dtype}", hint=hint)
    # Compared before memory is taken: a header of 100 bytes may state terabytes.
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) - file.tell() != wanted:
        raise BadPayload(
            f"the array of shape {list(shape)} takes {wanted} bytes; {len(data) - file.tell()} came"
        )
    array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True)
class V2Request:
    """What a V2 body asks for."""

    outputs: Sequence[str]  # the names; none means all
    classes: Mapping[str, int]  # how many of the best classes are wanted of an output
    binary: Collection[str]  # the outputs whose data are wanted in binary


def read_request(payload: Payload, signature: Signature) -> V2Request:
    asked = payload.get("outputs") or []
    known = [spec.name for spec in signature.outputs]
    if not isinstance(asked, list):
        raise unexpected("outputs", asked, '[{"name": "…"}]')
    every = flag(parameters_of(payload), "binary_data_output", "", otherwise=False)
    forms: dict[str, bool] = {}
    classes: dict[str, int] = {}
    for place, output in enumerate(asked):
        where = f"outputs[{place}]"
        name = output.get("name") if isinstance(output, dict) else None
        if name not in known:
            what = f"`{where}` is {brief(output)}"
            if isinstance(name, str):
                what = f"`{where}`: there is no output {brief(name)}"
            raise BadPayload(what, hint=f"the model has {', '.join(known)}")
        if name in forms:
            raise BadPayload(f"`{where}`: {name!r} is given twice", hint="name each output once")
        content_type(output, f"{where}.", AS_THEY_ARE)
        parameters = parameters_of(output, f"{where}.")
        forms[name] = flag(parameters, "binary_data", f"{where}.", otherwise=every)
        if (count := parameters.get("classification")) is not None:
            if type(count) is not int or not 1 <= count < 2**31:
                expected = "how many of the best classes are wanted: a whole number from 1"
                raise unexpected(f"{where}.parameters.classification", count, expected)
            classes[name] = count
    wanted = forms or dict.fromkeys(known, every)
    return V2Request(list(forms), classes, {name for name, binary in wanted.items() if binary})


def flag(parameters: Mapping[str, Any], name: str, where: str, *, otherwise: bool) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise unexpected(f"{where}parameters.{name}", value, "true or false")
    return value


def class_texts(array: Array) -> list[Any]:
    """Return an output's best classes, as `clients.tensors.classes` writes them."""
    texts: list[str] = json_data(array)
    return [NotFinite(math.nan, one) if one.startswith("null:") else one for one in texts]
