"""Compute the last matrix product of a graph only for the wanted rows.

A language model gives a score for each word of its vocabulary at each place of a text, but a
request needs only the places of its masks. The product with the vocabulary is a fifth of the
arithmetic of BERT-base, and its result has 1 GB for 16 texts of 512 tokens. Here the graph selects
the rows before that product. One more input has their numbers; if it is empty, all are computed.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.onnx_files import proto
from backends.onnx_files.proto import field, node, text, values

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import RunRows, Tensors

NUMBERS = "numbers of the rows wanted of "
"""Before an output's name: the input, int64 [rows]. Without any rows all are computed."""
SHAPE = "shape of all of "
"""Before an output's name: one more output, int64 [2], its dimensions before the last."""

ALL: Mapping[str, RunRows] = {}  # rows are wanted of no output

RANK = 3  # of an output: texts, places, words
_PRODUCTS = ("MatMul", "Gemm")
_BY_COLUMN = ("Add", "Mul")  # what there may be between the product and the output
_AS_IT_IS = ("Cast", "Identity", "Reshape")
_OF_WEIGHTS = ("Cast", "DequantizeLinear", "Identity", "Mul", "Transpose")
_LONGEST = 8  # steps from weights to the product
_END = 2**31 - 1  # behind any row; OpenVINO computes in 32 bits

GRAPH = 7  # of ModelProto
NODE, WEIGHTS, INPUT, OUTPUT, VALUE_INFO = 1, 5, 11, 12, 13  # of GraphProto
RAW, EXTERNAL, DATA_LOCATION = 9, 13, 14  # of TensorProto
GRAPHS = (6, 11)  # of AttributeProto


class _Step(NamedTuple):
    begin: int
    value: range
    operator: str
    inputs: Sequence[str]


class _End(NamedTuple):
    """How a graph ends before an output [.., .., width]: with a product of rows `hidden` [height].

    `behind` are the names of what is made from the product to the output, which comes first.
    """

    behind: Sequence[str]
    width: int
    height: int
    hidden: str

    @property
    def name(self) -> str:
        return self.behind[0]


def take_rows(file: Path, *, inlined: bool) -> tuple[bytes, tuple[str, ...]]:
    """Return a model of which rows of outputs are computed as they are wanted, and their names.

    These are outputs [any size, any size, V] that end in a product of [.., H] with a matrix [H, V],
    V above H, with or without factors, a bias and reshapes around it. Without any, the model is
    empty. Weights in files of their own may be `inlined`.
    """
    try:
        with proto.mapped(file) as data:
            graph = _GraphFile(data)
            ends = [end for one in graph.wide if (end := graph.end(one))]
            made = graph.with_rows(ends, file.parent if inlined else None) if ends else b""
            return made, tuple(end.name for end in ends)
    except (ArithmeticError, BufferError, LookupError, OSError, ValueError):
        return b"", ()  # no file of ONNX, or one without its weights: its engine explains it


class _GraphFile:
    """The graph of a file; `wide` are the outputs of a fitting shape, and their last sizes.

    Raises LookupError, ValueError: it is no file of ONNX.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        model = proto.fields(data, range(len(data)))
        (self._place,) = (one for one in model if one.number == GRAPH)
        self._fields = list(proto.fields(data, self._place.value))
        self.wide: dict[str, int] = {}
        self._makers: dict[str, _Step] = {}
        self._weights: dict[str, Sequence[int]] = {}
        self._readers: Counter[str] = Counter()
        for one in self._fields:
            if one.number == OUTPUT:
                self._read_output(one.value)
        for one in self._fields if self.wide else ():
            if one.number == NODE:
                self._read_node(one)
            elif one.number == WEIGHTS:
                self._weights[self._text(one.value, 8)] = self._dims(one.value)

    def _read_output(self, value_info: range) -> None:
        name, sizes = self._text(value_info, 1), list(self._sizes(value_info))
        self._readers[name] += 1
        if len(sizes) == RANK and sizes[-1] and not any(sizes[:-1]):
            self.wide[name] = sizes[-1]

    def _read_node(self, place: proto.ProtoField) -> None:
        inputs = [text(self._data, one) for one in values(self._data, place.value, 1)]
        self._readers.update(inputs)
        # An operator of others may do anything, and a graph inside of a node may read any tensor.
        operator = self._text(place.value, 7).removeprefix("ai.onnx") + self._text(place.value, 4)
        for attribute in values(self._data, place.value, 5):
            if any(one.number in GRAPHS for one in proto.fields(self._data, attribute)):
                raise ValueError(f"'{operator}' has a graph")
        for output in values(self._data, place.value, 2):
            name = text(self._data, output)
            self._makers[name] = _Step(place.begin, place.value, operator, inputs)
            if operator == "Constant":
                for tensor in values(self._data, place.value, 5, 5):
                    self._weights[name] = self._dims(tensor)

    def _text(self, message: range, number: int) -> str:
        return "".join(text(self._data, one) for one in values(self._data, message, number))

    def _sizes(self, value_info: range) -> Iterator[int]:
        """Yield the sizes of a tensor, 0 for any."""
        for size in values(self._data, value_info, 2, 1, 2, 1):
            yield sum(proto.numbers(self._data, one)[0] for one in values(self._data, size, 1))

    def _dims(self, tensor: range) -> list[int]:
        found = values(self._data, tensor, 1)
        return [size for one in found for size in proto.numbers(self._data, one)]

    def end(self, name: str) -> _End | None:
        """Return the graph's end before an output; None where `with_rows` cannot use it."""
        behind, width = [name], self.wide[name]
        while (maker := self._makers.get(behind[-1])) and self._readers[behind[-1]] == 1:
            if maker.operator in _PRODUCTS:
                return self._of_product(behind, width, maker)
            inputs = maker.inputs[:1] if maker.operator in _AS_IT_IS else ()
            if maker.operator in _BY_COLUMN:
                inputs = [one for one in maker.inputs if not self._is_by_column(one, width)]
            if len(inputs) != 1:
                return None
            behind += inputs
        return None

    def _of_product(self, behind: Sequence[str], width: int, product: _Step) -> _End | None:
        hidden, matrix, *bias = product.inputs
        rows = self._makers.get(hidden)
        *scales, shape = self._shapes(matrix) or [()]
        height, *others = sorted(shape) or [0]
        is_flat = product.operator == "Gemm" or (
            self._is_reshape(hidden) and self._weights.get(self._makers[hidden].inputs[1]) == [2]
        )
        fits = (
            others == [width]
            and 0 < height < width
            # One for each row of the matrix is wrong in OpenVINO 2026.4, for few rows alone.
            and all([size for size in one if size != 1] in ([], [width]) for one in scales)
            and all(len(one) <= len(shape) for one in scales)
            and all(self._is_by_column(one, width) for one in bias if one)
            and not self._is_turned(product)
            and (is_flat or not any(map(self._is_reshape, behind)))
            and not (rows and rows.operator == "DequantizeLinear")  # which its engine joins to it
        )
        return _End(behind, width, height, hidden) if fits else None

    def _is_turned(self, product: _Step) -> bool:
        """Whether the product is one of columns."""
        return any(
            self._text(one, 1) == "transA" and self._data[number.start]
            for one in values(self._data, product.value, 5)
            for number in values(self._data, one, 3)
        )

    def _is_by_column(self, name: str, width: int) -> bool:
        """Whether a tensor is one number, or one for each column, that no input changes."""
        shapes = self._shapes(name)
        return bool(shapes) and all(one in ([], [1], [width], [1, width]) for one in shapes)

    def _shapes(self, name: str) -> list[Sequence[int]]:
        """Return the shapes of the weights that make a tensor; none if something else does too.

        The last one is that of the tensor itself, before it is transposed.
        """
        shapes: list[Sequence[int]] = []
        for _ in range(_LONGEST):
            if name in self._weights:
                return [*shapes, self._weights[name]]
            maker = self._makers.get(name)
            if not maker or maker.operator not in _OF_WEIGHTS:
                break
            name, *factors = (one for one in maker.inputs if one)
            if any(one not in self._weights for one in factors):
                break
            shapes += [self._weights[one] for one in factors]
        return []

    def with_rows(self, ends: Sequence[_End], folder: Path | None) -> bytes:
        """Return the model with such ends; weights in files of their own are in this folder."""
        data, place = memoryview(self._data), self._place
        # What is known of tensors in between holds for all rows.
        edits = {one.begin: b"" for one in self._fields if one.number == VALUE_INFO}
        if folder:
            for one in self._fields:
                if one.number == WEIGHTS and self._is_outside(one.value):
                    edits[one.begin] = field(WEIGHTS, self._inlined(one.value, folder))
        more = b""
        for end in ends:
            edits |= self._edits(end)
            more += field(INPUT, proto.tensor(NUMBERS + end.name, proto.INT64, 1))
            more += field(OUTPUT, proto.tensor(SHAPE + end.name, proto.INT64))
        parts = [edits.get(one.begin, data[one.begin : one.value.stop]) for one in self._fields]
        head = proto.head(GRAPH, sum(map(len, parts)) + len(more))
        return b"".join([data[: place.begin], head, *parts, more, data[place.value.stop :]])

    def _is_outside(self, weights: range) -> bool:
        return any(self._data[one.start] for one in values(self._data, weights, DATA_LOCATION))

    def _inlined(self, weights: range, folder: Path) -> bytes:
        """Return weights that are in another file of a folder."""
        entries = values(self._data, weights, EXTERNAL)
        said = {self._text(one, 1): self._text(one, 2) for one in entries}
        file = (folder / said["location"]).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise ValueError(f"weights are in '{file}'")
        with file.open("rb") as opened:
            opened.seek(int(said.get("offset", 0)))
            raw = opened.read(int(said.get("length", -1)))
        kept = (
            self._data[one.begin : one.value.stop]
            for one in proto.fields(self._data, weights)
            if one.number not in (EXTERNAL, DATA_LOCATION)
        )
        return b"".join(kept) + field(RAW, raw)

    def _edits(self, end: _End) -> dict[int, bytes]:
        """Return what comes in place of nodes, by where they begin."""
        own = f"rows of {end.name}: "
        renamed = {end.hidden: own + "picked", end.name: own + "columns"}
        edits = {}
        for name in end.behind:
            maker = self._makers[name]
            if self._is_reshape(name):
                made = node("Identity", maker.inputs[:1], renamed.get(name, name))
            else:
                made = self._renamed(maker, renamed)
            edits[maker.begin] = field(NODE, made)
        product, last = (self._makers[end.behind[place]].begin for place in (-1, 0))
        edits[product] = self._picking(end, own) + edits[product]
        edits[last] += self._dims_of(end, own)
        # As many dimensions as before.
        edits[last] += _integers(own + "shape", 1, -1, end.width)
        edits[last] += field(NODE, node("Reshape", [own + "columns", own + "shape"], end.name))
        return edits

    def _dims_of(self, end: _End, own: str) -> bytes:
        """Return the nodes that say which dimensions an output has before its last one."""
        targets = [self._makers[one].inputs[1:] for one in end.behind if self._is_reshape(one)]
        first_two = [own + "begin of all", own + "two"]
        nodes, whole = [], end.hidden
        if targets:
            whole = own + "every in its place"
            nodes = [
                node("Slice", [*targets[0], *first_two], own + "dims"),
                node("Reshape", [own + "every", own + "dims"], whole),
            ]
        nodes.append(node("Shape", [whole], own + "all"))
        nodes.append(node("Slice", [own + "all", *first_two], SHAPE + end.name))
        constants = _integers(first_two[0], 0) + _integers(first_two[1], 2)
        return constants + b"".join(field(NODE, one) for one in nodes)

    def _is_reshape(self, name: str) -> bool:
        return name in self._makers and self._makers[name].operator == "Reshape"

    def _renamed(self, maker: _Step, names: Mapping[str, str]) -> bytes:
        """Return a node with other names for inputs or outputs."""
        made = b""
        for one in proto.fields(self._data, maker.value):
            name = text(self._data, one.value) if one.number in (1, 2) else ""
            if name in names:
                made += field(one.number, names[name])
            else:
                made += self._data[one.begin : one.value.stop]
        return made

    @staticmethod
    def _picking(end: _End, own: str) -> bytes:
        """Return the nodes that pick the wanted rows before the product."""
        wanted, joined = NUMBERS + end.name, field(5, field(1, "axis") + field(3, 0) + field(20, 2))
        # Without numbers the rest of all begins with the first; with some, behind the last.
        nodes = [
            node("Reshape", [end.hidden, own + "flat"], own + "rows"),
            node("Shape", [own + "rows"], own + "size"),
            node("Gather", [own + "size", own + "0"], own + "count"),
            node("Range", [own + "0", own + "count", own + "1"], own + "every"),
            node("Shape", [wanted], own + "given"),
            node("Min", [own + "given", own + "1"], own + "any"),
            node("Mul", [own + "any", own + "count"], own + "begin"),
            node("Slice", [own + "every", own + "begin", own + "end"], own + "rest"),
            node("Concat", [wanted, own + "rest"], own + "numbers", joined),
            node("Gather", [own + "rows", own + "numbers"], own + "picked"),
        ]
        constants = [
            _integers(own + "0", 0, dims=()),
            _integers(own + "1", 1, dims=()),
            _integers(own + "end", _END),
            _integers(own + "flat", -1, end.height),
        ]
        return b"".join([*constants, *(field(NODE, one) for one in nodes)])


def _integers(name: str, *numbers: int, dims: Sequence[int] | None = None) -> bytes:
    """Return a node that makes whole numbers: of one dimension, if nothing else is said."""
    sizes = [len(numbers)] if dims is None else dims
    raw = struct.pack(f"<{len(numbers)}q", *numbers)
    tensor = b"".join(field(1, size) for size in sizes) + field(2, proto.INT64) + field(RAW, raw)
    value = field(5, field(1, "value") + field(5, tensor) + field(20, 4))
    return field(NODE, node("Constant", [], name, value))


def with_numbers(
    of_rows: Sequence[str],
    inputs: Tensors,
    outputs: Sequence[str],
    rows: Mapping[str, RunRows],
) -> tuple[Tensors, Sequence[str]]:
    """Return what is fed to such a model, and the outputs that are asked for."""
    numbers = {
        NUMBERS + name: np.array(rows[name].numbers if name in rows else (), np.int64)
        for name in of_rows
    }
    shapes = [SHAPE + name for name in of_rows if name in outputs]
    return {**inputs, **numbers}, [*outputs, *shapes]


def of_all_or_rows(
    came: dict[str, NDArray[Any]], rows: Mapping[str, RunRows]
) -> dict[str, NDArray[Any]]:
    """Return what is wanted of the outputs of a run: [rows, V] of these, or all of it.

    Raises ValueError: an output has not the dimensions that were expected.
    """
    for shape in [name for name in came if name.startswith(SHAPE)]:
        name = shape.removeprefix(SHAPE)
        array, dims = came[name], came.pop(shape).tolist()
        if name not in rows:
            came[name] = array.reshape(*dims, array.shape[-1])
        elif tuple(dims) == rows[name].dims:
            came[name] = array[0]
        else:
            wanted = list(rows[name].dims)
            raise ValueError(f"rows were wanted of {wanted}, but there are {dims}.")
    return came
