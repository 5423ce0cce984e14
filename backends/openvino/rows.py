"""Compute the last matrix product of a graph only for the wanted rows.

A language model gives a score for each word of its vocabulary at each place of a text, but a
request needs only the places of its masks. The product with the vocabulary is a fifth of the
arithmetic of BERT-base, and its result has 1 GB for 16 texts of 512 tokens. Here the graph selects
the rows before that product. One more input has their numbers; if it is empty, all are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from backends.batching.item import RunRows

NUMBERS = "numbers of the rows wanted of "
"""Before an output's name: the input, int64 [rows]. Without any rows all are computed."""
SHAPE = "shape of all of "
"""Before an output's name: one more output, int64 [3], of which the last number means nothing."""

RANK = 3  # of an output: texts, places, words
_BEHIND = ("Add", "Multiply", "Reshape")  # what there may be between the product and the output
_DECOMPRESSION = ("Convert", "Multiply")  # of a constant in fewer bits
_END = 2**31  # behind any row, and small enough to be multiplied with their number


class _End(NamedTuple):
    """How a graph ends before an output: `hidden` [.., .., H] goes into a product.

    `reshapes` are nodes behind it that change its shape.
    """

    result: Any
    product: Any
    hidden: Any
    reshapes: Sequence[Any]


def take_rows(model: Any) -> tuple[str, ...]:
    """Change a graph so that rows of outputs are computed as they are wanted; return their names.

    These are outputs [any size, any size, V] that end in a product of [.., H] with a matrix [H, V],
    V above H, with or without factors, a bias and reshapes around it.
    """
    ends = {
        result.input_value(0).get_any_name(): end
        for result in model.get_results()
        if (end := _end(result))
    }
    for name, end in ends.items():
        _take_rows(model, name, end)
    if ends:
        model.validate_nodes_and_infer_types()
    return tuple(ends)


def _end(result: Any) -> _End | None:
    """Return a graph's end before an output; None where `take_rows` cannot use it."""
    shape = result.get_output_partial_shape(0)
    if not _has_rank(shape, RANK) or [size.is_dynamic for size in shape] != [True, True, False]:
        return None
    width = shape[2].get_length()
    reshapes = []
    node = result.input_value(0).get_node()
    while node.get_type_name() in _BEHIND and _is_read_once(node):
        if node.get_type_name() == "Reshape":
            reshapes.append(node)
        elif not _is_by_column(node.input_value(1), width):
            return None
        node = node.input_value(0).get_node()
    is_product = node.get_type_name() == "MatMul" and _is_read_once(node)
    if not is_product or node.get_attributes()["transpose_a"]:
        return None
    hidden, matrix = node.input_value(0), node.input_value(1).get_partial_shape()
    if reshapes and hidden.get_node().get_type_name() == "Reshape":
        hidden = hidden.get_node().input_value(0)
    sizes = hidden.get_partial_shape()
    fits = _has_rank(sizes, RANK) and sizes[2].is_static and sizes[2].get_length() < width
    return _End(result, node, hidden, reshapes) if fits and _has_rank(matrix, 2) else None


def _has_rank(shape: Any, rank: int) -> bool:
    return bool(shape.rank.is_static and shape.rank.get_length() == rank)


def _is_read_once(node: Any) -> bool:
    return bool(len(node.output(0).get_target_inputs()) == 1)


def _is_by_column(port: Any, width: int) -> bool:
    """Whether something is one number, or one for each column, that no input changes."""
    shape = port.get_partial_shape()
    if not _is_constant(port.get_node()):
        return False
    return bool(shape.is_static and tuple(shape.to_shape()) in ((), (1,), (width,), (1, width)))


def _is_constant(node: Any) -> bool:
    if node.get_type_name() in _DECOMPRESSION:
        return all(_is_constant(port.get_node()) for port in node.input_values())
    return bool(node.get_type_name() == "Constant")


def _take_rows(model: Any, name: str, end: _End) -> None:
    """Let a product have the rows that are wanted."""
    from openvino import opset13 as ops

    wanted = ops.parameter([-1], np.int64, name=NUMBERS + name)
    wanted.output(0).set_names({NUMBERS + name})
    height = end.hidden.get_partial_shape()[2].get_length()
    flat = ops.reshape(end.hidden, np.array([-1, height]), special_zero=False)
    # Without numbers the rest of all begins with the first; with some, behind the last.
    count = ops.gather(ops.shape_of(flat), np.array(0), np.array(0))
    every = ops.range(np.array(0), count, np.array(1), "i64")
    begin = ops.multiply(ops.shape_of(wanted), np.array([_END]))
    rest = ops.slice(every, begin, np.array([_END]), np.array([1]))
    picked = ops.gather(flat, ops.concat([wanted, rest], 0), np.array(0))
    whole = ops.result(ops.shape_of(end.hidden))
    whole.input_value(0).set_names({SHAPE + name})
    end.product.input(0).replace_source_output(picked.output(0))
    for reshape in end.reshapes:
        reshape.output(0).replace(reshape.input_value(0))
    model.add_parameters([wanted])
    model.add_results([whole])
    end.result.input_value(0).set_names({name})


def numbers_of(outputs: Sequence[str], rows: Mapping[str, RunRows]) -> dict[str, NDArray[np.int64]]:
    """Return the further inputs of a run."""
    return {
        NUMBERS + name: np.array(rows[name].numbers if name in rows else (), np.int64)
        for name in outputs
    }


def of_all_or_rows(
    array: NDArray[Any], shape: NDArray[np.int64], rows: RunRows | None
) -> NDArray[Any]:
    """Return what is wanted of an output of such a run: [rows, V], or all of it.

    `array` is [rows, V], `shape` what came as `SHAPE` of it.

    Raises ValueError: the output has not the dimensions that were expected.
    """
    *dims, _ = shape.tolist()
    if rows is None:
        return array.reshape(*dims, array.shape[-1])
    if tuple(dims) != rows.dims:
        raise ValueError(f"rows were wanted of {list(rows.dims)}, but there are {dims}.")
    return array
