"""Find the tensors of a model file whose number of dimensions is unknown.

ONNX Runtime's Python gives an empty shape for these and for scalars. In the file a scalar has a
shape without dimensions, and they have none. The numbers are those of ONNX's onnx.proto; all else,
weights above all, is passed over unread.
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GRAPH = 7  # of ModelProto
_INPUT, _OUTPUT = 11, 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR = 1  # of TypeProto
_SHAPE = 2  # of TypeProto.Tensor

_VARINT, _BYTES = 0, 2  # how a field is written
_WIDTHS = {1: 8, 5: 4}


def unknown_ranks(file: Path) -> frozenset[str]:
    """Return the inputs and outputs without a shape; none if unreadable.

    ONNX Runtime, which opens the same file, says what is wrong with it.
    """
    try:
        with file.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return frozenset(_unknown(memoryview(content)))
    except (OSError, ValueError, IndexError):
        return frozenset()


def _unknown(model: memoryview) -> Iterator[str]:
    for graph in _all(model, _GRAPH):
        for value in _all(graph, _INPUT, _OUTPUT):
            tensors = [one for kind in _all(value, _TYPE) for one in _all(kind, _TENSOR)]
            # (That of a scalar is there, and has no bytes.)
            if tensors and not any(True for one in tensors for _ in _all(one, _SHAPE)):
                yield from (str(name, "utf-8") for name in _all(value, _NAME))


def _all(message: memoryview, *numbers: int) -> Iterator[memoryview]:
    """Yield the contents of the fields of some numbers, messages or texts."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            if key >> 3 in numbers:
                yield message[at : at + size]
            at += size
        elif kind in _WIDTHS:
            at += _WIDTHS[kind]
        else:
            raise ValueError(f"a field of the kind {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and where the next field begins."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at
