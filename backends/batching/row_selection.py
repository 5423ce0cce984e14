"""The rows of an output that a request wants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def pick_rows(array: NDArray[Any], rows: Sequence[int]) -> NDArray[Any]:
    """Return some rows of an output: [rows, size of the last dimension].

    All dimensions but the last are counted as one. Raises RequestError: there is no such row.
    """
    flat = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    if rows and not 0 <= min(rows) <= max(rows) < len(flat):
        raise RequestError(
            f"rows {min(rows)} to {max(rows)} are wanted of an output that has {len(flat)}."
        )
    return flat[np.asarray(rows, np.intp)]


def pick_rows_above(array: NDArray[Any], column: int, least: float) -> NDArray[Any]:
    """Return the rows of an output [..., rows, columns] that exceed `least` in a column.

    The answer is [..., most rows, columns], in order: where others have more, rows of zeros follow.

    Raises RequestError: there is no such column of numbers.

    """
    if array.ndim < 2 or not 0 <= column < array.shape[-1] or array.dtype.kind not in "biuf":
        raise RequestError(
            f"rows are wanted by the numbers in column {column} of an output of {array.dtype} "
            f"and shape {list(array.shape)}, which has none."
        )
    before, columns = array.shape[:-2], array.shape[-1]
    tables = array.reshape(math.prod(before), *array.shape[-2:])
    wanted = [table[table[:, column] > least] for table in tables]
    most = max(map(len, wanted), default=0)
    answer = np.zeros((len(tables), most, columns), array.dtype)
    for place, rows in zip(answer, wanted, strict=True):
        place[: len(rows)] = rows
    return answer.reshape(*before, most, columns)
