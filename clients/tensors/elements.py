"""The elements of tensors as the Open Inference Protocol (V2) has them: in JSON, or in bytes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np
from pybase64 import b64decode

from clients.errors import BadPayload
from clients.tensors.quoting import brief, encodable
from clients.tensors.signature import DTYPES, Array

BASE64 = "base64"

# Python's JSON reader returns these two objects for the words Infinity and -Infinity, and for
# nothing else: 1e400 is another object.
INFINITIES: list[float] = json.loads("[Infinity, -Infinity]")

# The types that elements have in JSON, and in words; of other datatypes they are whole numbers.
KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "BOOL": ((bool,), "true or false"),
    "BYTES": ((str,), "texts"),
    **dict.fromkeys(
        ("FP16", "FP32", "FP64"),
        ((int, float, NoneType), "numbers, or null for what is no number"),
    ),
}
WHOLE = ((int,), "whole numbers")


def from_bytes(raw: memoryview, datatype: str, count: int, where: str) -> Array:
    """Return the elements of binary data, shape [elements]; of texts `count` at most."""
    if datatype == "BYTES":
        texts = list(itertools.islice(texts_in(raw, where), count + 1))
        if len(texts) > count:
            raise BadPayload(
                f"`{where}` has more texts than the {count} of its shape",
                hint="send as many as the product of `shape`",
            )
        return np.array(texts, np.object_)
    size = np.dtype(DTYPES[datatype]).itemsize
    if len(raw) % size:
        raise BadPayload(
            f"`{where}` has {len(raw)} bytes; one {datatype} has {size}",
            hint="send as many bytes as the product of `shape` times the size of one",
        )
    if datatype == "BOOL" and (most := np.frombuffer(raw, np.uint8).max(initial=0)) > 1:
        raise BadPayload(f"`{where}` has the byte {most}", hint="expected 0 or 1 for BOOL")
    return np.frombuffer(raw, DTYPES[datatype])


def texts_in(raw: memoryview, where: str) -> Iterator[bytes]:
    """Yield the texts of binary data: each has its length in front, in four bytes."""
    data, at = bytes(raw), 0  # of a memoryview each piece takes twice the time
    while at < len(data):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if at > len(data):
            raise BadPayload(
                f"`{where}` has {len(data)} bytes, and a text in them that ends at {at}",
                hint="expected the length of each text in four bytes, little-endian, then the text",
            )
        yield data[start:at]


def flatten_as(
    shape: Sequence[int], data: list[Any], where: str
) -> tuple[list[Any], Sequence[int]]:
    """Return the elements in order, and the shape in which they came: flat, or `shape`."""
    if list not in set(map(type, data)):
        return data, (len(data),)
    level: list[Any] = [data]
    for depth, size in enumerate(shape):
        for place, one in enumerate(level):
            if not isinstance(one, list) or len(one) != size:
                came = f"a list of {len(one)}" if isinstance(one, list) else brief(one)
                raise BadPayload(
                    f"`{where}{place_in(shape[:depth], place)}` is {came}",
                    hint=f"expected a list of {size}: data are flat, or nested as their shape",
                )
        level = list(itertools.chain.from_iterable(level))
    return level, shape


def place_in(shape: Sequence[int], place: int) -> str:
    """Return where an element is, such as `[0][2]`; `place` counts them in order."""
    return "".join(f"[{at}]" for at in np.unravel_index(place, shape))


def convert(
    flat: Sequence[Any], datatype: str, where: str, shape: Sequence[int] | None = None
) -> Array:
    """Return the elements of JSON as an array of `datatype`, shape [elements].

    `null` is not a number, as in an answer, where the type has such a value.
    Raises BadPayload: an element is of another type, or does not fit.
    """
    dtype, (kinds, words) = DTYPES[datatype], KINDS.get(datatype, WHOLE)

    def refused(wrong: Iterable[bool], expected: str) -> BadPayload:
        place = next(itertools.compress(itertools.count(), wrong))
        return BadPayload(
            f"`{where}{place_in(shape or (len(flat),), place)}` is {brief(flat[place])}, which "
            f"does not fit into {datatype}",
            hint=f"expected {expected}",
        )

    def fits(kind: type) -> bool:  # for Python a truth is a whole number
        return issubclass(kind, kinds) and (kind is bool) == (datatype == "BOOL")

    if not all(map(fits, set(map(type, flat)))):
        raise refused((not fits(type(one)) for one in flat), words)
    if datatype == "BYTES":
        if not all(map(encodable, flat)):
            raise refused((not encodable(one) for one in flat), "texts that UTF-8 can hold")
        return np.array([element.encode() for element in flat], np.object_)
    if "INT" in datatype and flat:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        least, most = int(limits.min), int(limits.max)
        if min(flat) < least or max(flat) > most:
            raise refused((not least <= one <= most for one in flat), f"{least} to {most}")
    return floats(flat, dtype, refused) if "FP" in datatype else np.array(flat, dtype)


def floats(
    flat: Sequence[Any],
    dtype: type[np.generic],
    refused: Callable[[Iterable[bool], str], BadPayload],
) -> Array:
    """Return numbers of JSON, and `null`, as an array; `refused` makes the error for wrong ones."""
    most = float(np.finfo(dtype).max)  # type: ignore[arg-type]
    expected = f"{-most:g} to {most:g}, the word Infinity, or null for what is no number"
    try:
        numbers = np.array(flat, np.float64)
    except OverflowError as error:  # a whole number beyond every float
        beyond = sys.float_info.max
        raise refused((type(one) is int and abs(one) > beyond for one in flat), expected) from error
    with np.errstate(over="ignore"):
        array: Array = numbers.astype(dtype)
    infinite = np.isinf(array)
    if infinite.any():
        pairs = zip(infinite.tolist(), flat, strict=True)
        wrong = [inf and not any(one is word for word in INFINITIES) for inf, one in pairs]
        if any(wrong):
            raise refused(wrong, expected)
    return array


def from_base64(array: Array, where: str) -> Array:
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


def binary_data(array: Array) -> bytes:
    """Return the elements in order, in binary; a text has its length in front, in four bytes."""
    if array.dtype != np.object_ and array.dtype.kind != "S":
        return array.tobytes()
    written = bytearray()  # pieces that are joined take ten times the memory
    for one in array.ravel().tolist():
        text = one if isinstance(one, bytes) else str(one).encode()
        written += len(text).to_bytes(4, "little")
        written += text
    return bytes(written)


def json_data(array: Array) -> list[Any]:
    """Return the elements in order, for JSON; bytes become texts."""
    flat: list[Any] = array.ravel().tolist()
    if array.dtype == np.object_ or array.dtype.kind == "S":
        return [e.decode(errors="replace") if isinstance(e, bytes) else str(e) for e in flat]
    return flat


def rows_of(outputs: Mapping[str, Array]) -> list[Any]:
    """Return the part of the outputs of each row, counted along axis 0: by name where several.

    Numbers of single precision have as many digits as they need, not the noise behind them.
    """
    return join_columns({name: row_values(array) for name, array in outputs.items()})


def join_columns(columns: Mapping[str, list[Any]]) -> list[Any]:
    """Return an object for each row; of one column its values."""
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def row_values(array: Array) -> list[Any]:
    """Return the values of each row: a list, or where it has one value the value alone."""
    if array.dtype.kind == "f" and array.dtype.itemsize < np.dtype(np.float64).itemsize:
        flat: Any = np.array([float(str(number)) for number in array.ravel()])
    elif array.dtype == np.object_:
        flat = np.array(json_data(array), np.object_)
    else:
        flat = array
    rows: list[Any] = flat.reshape(-1 if array.size == len(array) else array.shape).tolist()
    return rows
