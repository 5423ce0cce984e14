"""A graph whose last matrix product is computed for the rows that are wanted alone.

A language model gives a score for each word of its vocabulary at each place of a text, of which the
places of some masks are wanted. The product with the vocabulary is a fifth of the arithmetic of
BERT-base, and its result has 1 GB for 16 texts of 512 tokens. Here the graph takes the rows before
that product, by numbers that are one more input; where there are none, it takes all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from container.backends.batching import Rows

NUMBERS = "numbers of the rows wanted of "
"""Before an output's name: the input, int64 [rows]. Without any rows all are computed."""
SHAPE = "shape of all of "
"""Before an output's name: one more output, int64 [3], of which the last number means nothing."""

RANK = 3  # of an output: texts, places, words
_BEHIND = ("Add", "Multiply", "Reshape")  # what there may be between the product and the output
_END = 2**31  # behind any row, and small enough to be multiplied with their number


def take_rows(model: Any) -> tuple[str, ...]:
    """Change a graph so that rows of outputs are computed as they are wanted.

    These are outputs [any size, any size, V] that end in a product of [.., H] with a matrix [H, V],
    V above H, with or without factors, a bias and reshapes around it.

    Args:
        model: an `openvino.Model`.

    Returns:
        The names of the changed outputs.

    """
    changed = []
    for result in list(model.get_results()):
        name = result.input_value(0).get_any_name()
        if found := _product(result):
            _take_rows(model, result, name, *found)
            changed.append(name)
    if changed:
        model.validate_nodes_and_infer_types()
    return tuple(changed)


def _product(result: Any) -> tuple[Any, Any, list[Any]] | None:
    """Return the product before an output, its hidden rows [.., .., H], and reshapes behind it."""
    shape = result.get_output_partial_shape(0)
    if shape.rank.is_dynamic or len(shape) != RANK or [d.is_dynamic for d in shape] != [1, 1, 0]:
        return None
    width = shape[2].get_length()
    node, reshapes = result, []
    while True:
        if len(node.output(0).get_target_inputs()) > 1:
            return None
        node = node.input_value(0).get_node()
        if node.get_type_name() == "MatMul":
            break
        if node.get_type_name() not in _BEHIND:
            return None
        if node.get_type_name() == "Reshape":
            reshapes.append(node)
        elif not _is_by_column(node.input_value(1), width):
            return None
    if len(node.output(0).get_target_inputs()) > 1 or node.get_attributes()["transpose_a"]:
        return None
    hidden, matrix = node.input_value(0), node.input_value(1).get_partial_shape()
    if hidden.get_partial_shape().rank.get_length() == RANK - 1:
        flat = hidden.get_node()
        if flat.get_type_name() != "Reshape" or not reshapes:
            return None
        hidden = flat.input_value(0)
    sizes = hidden.get_partial_shape()
    known = not sizes.rank.is_dynamic and len(sizes) == RANK and sizes[2].is_static
    if not known or matrix.is_dynamic or len(matrix) != RANK - 1:
        return None
    return (node, hidden, reshapes) if sizes[2].get_length() < width else None


def _is_by_column(port: Any, width: int) -> bool:
    """Whether something is one number, or one for each column, that no input changes."""
    shape = port.get_partial_shape()
    if port.get_node().get_type_name() not in ("Constant", "Convert", "Multiply"):
        return False
    return bool(shape.is_static and tuple(shape.to_shape()) in ((), (1,), (width,), (1, width)))


def _take_rows(
    model: Any, result: Any, name: str, product: Any, hidden: Any, reshapes: list[Any]
) -> None:
    """Let a product have the rows that are wanted."""
    from openvino import opset13 as ops  # noqa: PLC0415  where a model is read alone

    wanted = ops.parameter([-1], np.int64, name=NUMBERS + name)
    wanted.output(0).set_names({NUMBERS + name})
    width = hidden.get_partial_shape()[RANK - 1].get_length()
    flat = ops.reshape(hidden, np.array([-1, width]), special_zero=False)
    # Without numbers the rest of all begins with the first; with some, behind the last.
    count = ops.gather(ops.shape_of(flat), np.array(0), np.array(0))
    every = ops.range(np.array(0), count, np.array(1), "i64")
    begin = ops.multiply(ops.shape_of(wanted), np.array([_END]))
    rest = ops.slice(every, begin, np.array([_END]), np.array([1]))
    picked = ops.gather(flat, ops.concat([wanted, rest], 0), np.array(0))
    whole = ops.result(ops.shape_of(hidden))
    whole.input_value(0).set_names({SHAPE + name})
    product.input(0).replace_source_output(picked.output(0))
    for reshape in reshapes:
        reshape.output(0).replace(reshape.input_value(0))
    model.add_parameters([wanted])
    model.add_results([whole])
    result.input_value(0).set_names({name})


def numbers_of(outputs: tuple[str, ...], rows: Mapping[str, Rows]) -> dict[str, NDArray[np.int64]]:
    """Return the further inputs of a run.

    Args:
        outputs: what `take_rows` returned.
        rows: which are wanted of an output, at least one; of others all.

    """
    return {
        NUMBERS + name: np.array(rows[name].numbers if name in rows else (), np.int64)
        for name in outputs
    }


def of_all_or_rows(
    array: NDArray[Any], shape: NDArray[np.int64], rows: Rows | None
) -> NDArray[Any]:
    """Return what is wanted of an output of such a run: [rows, V], or all of it.

    Args:
        array: the output, [rows, V].
        shape: what came as `SHAPE` of it.
        rows: what was wanted; None means all.

    Raises:
        ValueError: the output has not the dimensions that were expected.

    """
    *dims, _ = shape.tolist()
    if rows is None:
        return array.reshape(*dims, array.shape[-1])
    if tuple(dims) != rows.dims:
        raise ValueError(f"rows were wanted of {list(rows.dims)}, but there are {dims}.")
    return array
