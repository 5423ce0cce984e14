"""Read and write the little of ONNX's files that is needed here, without the package `onnx`.

That would read all weights. The numbers of the fields:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LONGEST = 10  # bytes of a number
FLOAT, INT64, FLOAT16 = 1, 7, 10  # TensorProto.DataType
FLOATS = {"TYPE_FP32": FLOAT, "TYPE_FP16": FLOAT16}


class ProtoField(NamedTuple):
    """A field of a message: where all of it begins, and where its value is."""

    number: int
    begin: int
    value: range


def single_operator(data_type: int, name: str, *integers: str) -> bytes:
    """Return a model that is one operator: `output`, of `table` and the named whole numbers."""
    tensors = {"table": data_type, **dict.fromkeys(integers, INT64)}
    graph = field(1, node(name, [*tensors], "output")) + field(2, name)
    graph += field(12, tensor("output", data_type))
    graph += b"".join(field(11, tensor(one, number)) for one, number in tensors.items())
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def is_half(file: Path) -> bool:
    """Whether most weights of a model are in half precision."""
    sizes: Counter[int] = Counter()
    with mapped(file) as data:
        for weights in values(data, range(len(data)), 7, 5):
            for data_type in values(data, weights, 2):
                sizes[data[data_type.start]] += len(weights)
    return sizes[FLOAT16] > sizes[FLOAT]


@contextmanager
def mapped(file: Path) -> Iterator[mmap.mmap]:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def tensor(name: str, data_type: int, rank: int = 0) -> bytes:
    """Return a `ValueInfoProto`: of any sizes, and without a `rank` of any number of dimensions."""
    shape = field(2, field(1, b"") * rank) if rank else b""
    return field(1, name) + field(2, field(1, field(1, data_type) + shape))


def node(operator: str, inputs: Sequence[str], output: str, attribute: bytes = b"") -> bytes:
    """Return a `NodeProto`."""
    fed = b"".join(field(1, one) for one in inputs)
    return fed + field(2, output) + field(4, operator) + attribute


def field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return head(number, len(content)) + content


def head(number: int, size: int) -> bytes:
    """Return what comes before a field's value of so many bytes."""
    return varint(number << 3 | 2) + varint(size)


def varint(number: int) -> bytes:
    low = []
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    return bytes([*low, number])


def values(data: mmap.mmap, message: range, *path: int) -> Iterator[range]:
    """Yield where a message has the values of a field, or of one of those in it, and so on."""
    for one in fields(data, message):
        if one.number == path[0]:
            yield from values(data, one.value, *path[1:]) if path[1:] else [one.value]


def fields(data: mmap.mmap, message: range) -> Iterator[ProtoField]:
    """Yield the fields of a message.

    Raises IndexError, ValueError: it is none, or ends too early.
    """
    begin = message.start
    while begin < message.stop:
        key, at = _varint(data, begin)
        if key < 1 << 3 or key & 7 not in (0, 1, 2, 5):
            raise ValueError("no message of protobuf")
        if key & 7 == 2:  # a length comes before it
            size, at = _varint(data, at)
        else:  # a number: of its own length, or of 64 or 32 bits
            size = {1: 8, 5: 4}.get(key & 7) or _varint(data, at)[1] - at
        yield ProtoField(key >> 3, begin, range(at, at + size))
        begin = at + size


def text(data: mmap.mmap, value: range) -> str:
    return data[value.start : value.stop].decode()


def numbers(data: mmap.mmap, value: range) -> list[int]:
    """Return the whole numbers of a field, which may be packed: one behind the other."""
    at, found = value.start, []
    while at < value.stop:
        number, at = _varint(data, at)
        found.append(number)
    return found


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number in a file, and where it ends."""
    end = at
    while data[end] > 127:
        end += 1
        if end == at + LONGEST:
            raise ValueError("no number of protobuf")
    return sum((data[one] & 127) << 7 * (one - at) for one in range(at, end + 1)), end + 1
