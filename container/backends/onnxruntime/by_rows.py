"""A saved graph whose last matrix product is computed for the rows that are wanted alone.

A language model gives a score for each word of its vocabulary at each place of a text, of which the
places of some masks are wanted. The product with the vocabulary is a fifth of the arithmetic of
BERT-base, and its result has 1 GB for 16 texts of 512 tokens. Here the graph takes the rows before
that product, by numbers that are one more input; where there are none, it takes all.

Files are changed in the fields that matter, as ONNX's own onnx.proto numbers them; protobuf leaves
all others as they are. ONNX's own package is 55 MB, and nothing else of the container needs it.
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from container.backends.batching import Rows

NUMBERS = "numbers of the rows wanted of "
"""Before an output's name: the input, int64 [rows]. Without any rows all are computed."""
SHAPE = "shape of all of "
"""Before an output's name: one more output, int64 [3], of which the last number means nothing."""

_SCHEMA = """
Model: graph 7 Graph
Graph: node 1 *Node, initializer 5 *Tensor, input 11 *Value, output 12 *Value, value_info 13 *Value
Node: input 1 *text, output 2 *text, op_type 4 text, domain 7 text, attribute 5 *Attribute
Attribute: name 1 text, i 3 int, g 6 bytes, graphs 11 *bytes, type 20 int
Tensor: dims 1 *int, data_type 2 int, int64_data 7 *int, name 8 text
Value: name 1 text, type 2 Type
Type: tensor_type 1 TensorType
TensorType: elem_type 1 int, shape 2 Shape
Shape: dim 1 *Dimension
Dimension: dim_value 1 int, dim_param 2 text
"""
"""The messages, without the "Proto" of their names: field, number, type; "*" is repeated."""

_PRODUCTS = ("MatMul", "Gemm")
_INT64 = 7  # of TensorProto.DataType
_INT = 2  # of AttributeProto.AttributeType
_END = 2**31  # behind any row, and small enough to be multiplied with their number


def _model_type() -> Any:
    # Here, for only few models need it, and each of their processes has 3 MB of it then.
    from google.protobuf import (  # noqa: PLC0415 - see above
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    of_field = descriptor_pb2.FieldDescriptorProto
    plain = {"text": of_field.TYPE_STRING, "int": of_field.TYPE_INT64, "bytes": of_field.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="graph", package="graph")
    for line in _SCHEMA.strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field, number, kind = text.split()
            added = message.field.add(name=field, number=int(number))
            added.label = of_field.LABEL_REPEATED if kind[0] == "*" else of_field.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            added.type = plain.get(kind, of_field.TYPE_MESSAGE)
            if kind not in plain:
                added.type_name = f".graph.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("graph.Model"))


def may_have(outputs: Iterable[Any]) -> bool:
    """Whether one of a session's outputs has a shape for which `by_rows` is worth asking."""
    shapes = [[isinstance(size, int) for size in output.shape] for output in outputs]
    return [False, False, True] in shapes


def by_rows(saved: bytes) -> bytes | None:
    """Return a saved graph with outputs whose rows are computed as they are wanted.

    These are outputs [any size, any size, V] that end in a product with a matrix [H, V] of the
    file, V above H, with or without a bias and reshapes before and after.

    Returns:
        The changed graph; None where there is no such output.

    """
    model = _model_type()()
    model.ParseFromString(saved)
    graph = model.graph
    if any(one.g or one.graphs for node in graph.node for one in node.attribute):
        return None  # what stands in a graph inside may be read from there
    found = False
    for output in list(graph.output):
        if end := _end(graph, output):
            _take_rows(graph, end)
            found = True
    changed: bytes = model.SerializeToString()
    return changed if found else None


@dataclass(frozen=True)
class _End:
    """How a graph ends before an output.

    Args:
        output: its name.
        product: the node with the product.
        last: the node that the output comes from.
        matrix: height and width of what the product is with.

    """

    output: str
    product: Any
    last: Any
    matrix: tuple[int, int]


def _end(graph: Any, output: Any) -> _End | None:
    """Return how a graph ends before an output; None where that is not as `by_rows` has it."""
    sizes = [size.dim_value for size in output.type.tensor_type.shape.dim]
    if sizes[:-1] != [0, 0]:
        return None
    made_by = {name: node for node in graph.node for name in node.output}
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    read = Counter(name for node in graph.node for name in node.input)
    read.update(value.name for value in graph.output)
    name, last = output.name, made_by.get(output.name)
    while (node := made_by.get(name)) and node.input and not node.domain and read[name] == 1:
        is_last = name == output.name
        name, *others = node.input
        dims = [weights.get(other, ()) for other in others]
        if node.op_type in _PRODUCTS:
            turned = {one.name for one in node.attribute if one.i}
            matrix = dims[0][::-1] if "transB" in turned else dims[0]
            fits = len(matrix) == 2 and matrix[0] < matrix[1] == sizes[-1]
            if fits and dims[1:] in ([], [matrix[1:]]) and "transA" not in turned:
                return _End(output.name, node, last, matrix)
            return None
        if node.op_type == "Add" and name in weights:
            name, dims = others[0], [weights[name]]
        is_bias = node.op_type == "Add" and dims == [(sizes[-1],)]
        if not is_bias and not (node.op_type == "Reshape" and is_last and dims == [()]):
            return None
    return None


def _take_rows(graph: Any, end: _End) -> None:
    """Let a product have the rows that are wanted."""
    wanted, all_of_it = NUMBERS + end.output, SHAPE + end.output
    height, width = end.matrix
    hidden = end.product.input[0]
    # A Gemm has no axis for a batch, but a Reshape behind it: as few nodes are added as can be,
    # for ONNX Runtime copies what comes out of a Reshape that is the last.
    reshaped = end.last.op_type == "Reshape"
    axis = 0 if reshaped else 1
    before, after = _Writer(graph, f"rows of {end.output}"), _Writer(graph, f"all of {end.output}")
    flat = before.node("Reshape", hidden, before.constant([*[1] * axis, -1, height]))
    # Without numbers the rest of all begins with the first; with some, behind the last.
    count = before.node("Gather", before.node("Shape", flat), before.constant(axis))
    every = before.node("Range", before.constant(0), count, before.constant(1))
    begin = before.node("Mul", before.node("Shape", wanted), before.constant([_END]))
    rest = before.node("Slice", every, begin, before.constant([_END]))
    numbers = before.node("Concat", wanted, rest, axis=0)
    end.product.input[0] = before.node("Gather", flat, numbers, axis=axis)
    shape = before.node("Shape", hidden, output="" if reshaped else all_of_it)
    if reshaped:
        # What the Reshape makes of all rows, it makes of others that have one number each.
        one, first, last = after.constant([1]), after.constant([0]), after.constant([-1])
        dims = after.node("Concat", after.node("Slice", shape, first, last), one, axis=0)
        wanted_dims = after.node("Slice", end.last.input[1], first, last)
        reshape = after.copy(end.last)
        reshape.input[:] = [
            after.node("ConstantOfShape", dims),
            after.node("Concat", wanted_dims, one, axis=0),
        ]
        reshape.output[:] = [after.name()]
        after.nodes.append(reshape)
        after.node("Shape", reshape.output[0], output=all_of_it)
        end.last.input[1] = after.constant([1, -1, width])
    place = [node.output[:] for node in graph.node].index(end.product.output[:])
    nodes = [*graph.node[:place], *before.nodes, *graph.node[place:], *after.nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    for value, size in (
        (graph.input.add(name=wanted), {"dim_param": wanted}),
        (graph.output.add(name=all_of_it), {"dim_value": 3}),
    ):
        value.type.tensor_type.elem_type = _INT64
        value.type.tensor_type.shape.dim.add(**size)
    # Sizes of one name are taken to be equal, and memory to be of use for all that have it.
    del graph.value_info[:]
    output = next(value for value in graph.output if value.name == end.output)
    for number, size in enumerate(output.type.tensor_type.shape.dim[:-1]):
        size.dim_param = f"{number} of {wanted}"


class _Writer:
    """Makes nodes and constants whose names no other one has."""

    def __init__(self, graph: Any, what: str) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.names = (f"{number} for {what}" for number in itertools.count())

    def name(self) -> str:
        return next(self.names)

    @staticmethod
    def copy(node: Any) -> Any:
        copied = type(node)()
        copied.CopyFrom(node)
        return copied

    def node(self, kind: str, *inputs: str, output: str = "", axis: int | None = None) -> str:
        made = type(self.graph.node[0])(op_type=kind, input=inputs, output=[output or self.name()])
        if axis is not None:
            made.attribute.add(name="axis", i=axis, type=_INT)
        self.nodes.append(made)
        return str(made.output[0])

    def constant(self, value: int | list[int]) -> str:
        numbers, dims = (value, [len(value)]) if isinstance(value, list) else ([value], [])
        name = self.name()
        self.graph.initializer.add(name=name, dims=dims, data_type=_INT64, int64_data=numbers)
        return name


def outputs_by_rows(session: Any) -> tuple[str, ...]:
    """Return the outputs of an open session of which rows can be had."""
    names = [output.name for output in session.get_outputs()]
    return tuple(name.removeprefix(SHAPE) for name in names if name.startswith(SHAPE))


def numbers_of(names: Sequence[str], rows: Mapping[str, Rows]) -> dict[str, NDArray[np.int64]]:
    """Return the further inputs of a run of a session that has these `outputs_by_rows`.

    Args:
        names: these.
        rows: which are wanted of an output, at least one; of others all.

    """
    return {
        NUMBERS + name: np.array(rows[name].numbers if name in rows else (), np.int64)
        for name in names
    }


def of_all_or_rows(
    array: NDArray[Any], shape: NDArray[np.int64], rows: Rows | None
) -> NDArray[Any]:
    """Return what is wanted of an output of such a run: [rows, V], or all of it.

    Args:
        array: the output, [1, rows, V].
        shape: what came as `SHAPE` of it.
        rows: what was wanted; None means all.

    Raises:
        ValueError: the output has not the dimensions that were expected.

    """
    *dims, _ = shape.tolist()
    if rows is None:
        whole: NDArray[Any] = array.reshape(*dims, array.shape[-1])
        return whole
    if tuple(dims) != rows.dims:
        raise ValueError(f"rows were wanted of {list(rows.dims)}, but there are {dims}.")
    few: NDArray[Any] = array[0]
    return few
