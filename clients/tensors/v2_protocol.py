"""Bodies of the Open Inference Protocol (V2), and NumPy's file format, as arrays.

https://kserve.github.io/website, "Open Inference Protocol (V2) - REST"
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pybase64 import b64decode

from clients.base import Payload
from clients.errors import BadPayload
from clients.tensors.nested import flattened
from clients.tensors.quoting import brief, encodable
from clients.tensors.scores import NotFinite
from clients.tensors.signature import DATATYPES, DTYPES, Array
from clients.triton.server import Signature

numpy_format: Any = np.lib.format  # it has no types

MOST_DIMENSIONS = 32  # NumPy's own limit

# Python's JSON reader returns these two objects for the words Infinity and -Infinity, and for
# nothing else: 1e400 is another object.
INFINITIES: list[float] = json.loads("[Infinity, -Infinity]")

# MLServer's content types for elements that are written as they are.
AS_THEY_ARE = ("np", "str")
BASE64 = "base64"

V2_EXPECTED = 'expected {"inputs": [{"name": "…", "shape": […], "datatype": "FP32", "data": […]}]}'


def read_v2(payload: Payload) -> dict[str, Array]:
    """Return the arrays of a V2 body, by name.

    Raises:
        BadPayload: it is no V2 body, or a tensor's data do not match its shape and type.

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
            raise BadPayload(f"`{where}`: the name {tensor['name']!r} is given twice")
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
            hint="expected a list of numbers or texts, flat or nested, and no binary data",
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
    except ValueError as error:  # no elements, in a shape beyond any memory
        raise BadPayload(f"`{where}.shape` {shape} is too large") from error


def content_type(stated: Mapping[str, Any], where: str, taken: Sequence[str]) -> str:
    """Return the content type in the `parameters` of a tensor or a body, if any.

    Raises:
        BadPayload: it is not allowed there.

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
    """Return the bytes that a tensor has as base64.

    Raises:
        BadPayload: its elements are no texts, or one is not base64.

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
    """Refuse numbers such as 1e400, which Python reads as infinity; allow `Infinity`.

    Raises:
        BadPayload: there is such a number.

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
    """Return the array of a NumPy file; nothing is unpickled.

    Raises:
        BadPayload: it is no such file, is cut off, or holds Python objects.

    """
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
        raise BadPayload(f"the array has the shape {brief(list(shape))}")
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


def wanted_outputs(payload: Payload, signature: Signature) -> tuple[list[str], dict[str, int]]:
    """Return the outputs that a V2 body asks for, and the classes wanted of each."""
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
            raise BadPayload(f"`outputs[{place}]`: {name!r} is given twice")
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
    """Return the elements in order, for JSON; bytes become texts."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype == np.object_ or array.dtype.kind == "S":
        return [e.decode(errors="replace") if isinstance(e, bytes) else str(e) for e in flat]
    return flat
