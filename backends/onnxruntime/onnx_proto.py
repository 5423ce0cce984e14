"""Write and read the little of ONNX's files that a GPU needs, without the package `onnx`.

The numbers of the fields: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLOAT, INT64, FLOAT16 = 1, 7, 10  # TensorProto.DataType
FLOATS = {"TYPE_FP32": FLOAT, "TYPE_FP16": FLOAT16}


def single_operator(data_type: int, name: str, *integers: str) -> bytes:
    """Return a model that is one operator: `output`, of `table` and the named whole numbers."""
    tensors = {"table": data_type, **dict.fromkeys(integers, INT64)}
    node = b"".join(_field(1, tensor) for tensor in tensors) + _field(2, "output") + _field(4, name)
    graph = _field(1, node) + _field(2, name) + _tensor(12, "output", data_type)
    graph += b"".join(_tensor(11, tensor, number) for tensor, number in tensors.items())
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, 17))


def is_half(file: Path) -> bool:
    """Whether most weights of a model are in half precision."""
    sizes: Counter[int] = Counter()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for graph in _values(data, range(len(data)), 7):
            for tensor in _values(data, graph, 5):
                for data_type in _values(data, tensor, 2):
                    sizes[data[data_type.start]] += len(tensor)
    return sizes[FLOAT16] > sizes[FLOAT]


def _tensor(side: int, name: str, data_type: int) -> bytes:
    return _field(side, _field(1, name) + _field(2, _field(1, _field(1, data_type))))


def _field(number: int, value: int | str | bytes) -> bytes:
    """Return a field of a message; all numbers here are below 128, and lengths below 16,384."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    content = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content


def _values(data: mmap.mmap, message: range, wanted: int) -> Iterator[range]:
    """Yield where a message has the values of a field."""
    at = message.start
    while at < message.stop:
        key, at = _varint(data, at)
        if key & 7 == 2:  # a length comes before it
            size, at = _varint(data, at)
        else:  # a number: of its own length, or of 64 or 32 bits
            size = {1: 8, 5: 4}.get(key & 7) or _varint(data, at)[1] - at
        if key >> 3 == wanted:
            yield range(at, at + size)
        at += size


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number in a file, and where it ends."""
    end = at
    while data[end] > 127:
        end += 1
    return sum((data[one] & 127) << 7 * (one - at) for one in range(at, end + 1)), end + 1
