"""Run the rows of a padded request in buckets of similar length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from backends.batching.item import AXIS, Item, RequestError
from backends.batching.padding import near
from backends.batching.run_items import rows_of, run_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from backends.batching.item import ByRows, Run, Tensors

    Numbers = NDArray[np.intp]


class Bucket(NamedTuple):
    """Some rows of a request, and their indices in it, ascending."""

    item: Item
    rows: Numbers


def run_in_buckets(
    items: Sequence[Item], run: Run, *, max_batch_size: int, by_rows: ByRows | None = None
) -> list[Tensors | Exception]:
    """Answer items as `run_items` does, but compute little of their padding.

    At padded places its outputs may have zeros or empty texts. Where a bucket of an item fails, the
    item is run whole.
    """
    run_all = partial(run_items, run=run, max_batch_size=max_batch_size, by_rows=by_rows)
    cut = [buckets(item, max_batch_size) for item in items]
    if not any(cut):
        return run_all(items)
    parts = [
        (index, part)
        for index, (item, some) in enumerate(zip(items, cut, strict=True))
        for part in ([bucket.item for bucket in some] or [item])
    ]
    # By length, so that buckets of several items meet; each shorter one is only filled up itself.
    # Those of one item stay in their order, which is this one.
    parts.sort(key=lambda part: -part[1].length)
    came = run_all([part for _, part in parts])
    answers_of: list[list[Tensors | Exception]] = [[] for _ in items]
    for (index, _), answer in zip(parts, came, strict=True):
        answers_of[index].append(answer)
    joined = [
        _join(item, some, own) if some else own[0]
        for item, some, own in zip(items, cut, answers_of, strict=True)
    ]
    again = [index for index, answer in enumerate(joined) if answer is None]
    whole = run_all([items[index] for index in again])
    found = dict(zip(again, whole, strict=True))  # an error is that of the whole item
    return [found[index] if one is None else one for index, one in enumerate(joined)]


def buckets(item: Item, max_batch_size: int) -> list[Bucket]:
    """Return an item's buckets, the longest first; empty where it is run whole."""
    if not item.length or item.above or item.rows.keys() - {*item.padding.outputs}:
        return []
    try:
        count = rows_of(item, max_batch_size)
    except RequestError:  # running the whole item raises it
        return []
    if count < 2:
        return []
    own = lengths(item)
    for some in item.rows.values():
        if some and not 0 <= min(some) <= max(some) < count * item.length:
            return []
        row, place = np.divmod(np.asarray(some, np.intp), item.length)
        np.maximum.at(own, row, place + 1)
    groups = near(own)
    if len(groups) == 1 and own.max() == item.length:
        return []
    return [Bucket(_some(item, rows, own[rows].max()), rows) for rows in groups]


def lengths(item: Item) -> Numbers:
    """Return the length of each row without its sender's padding.

    A row that is nothing else is as long as it came.
    """
    alike = [
        (array == item.padding.inputs[name]).all(axis=tuple(range(AXIS + 1, array.ndim)))
        for name, array in item.inputs.items()
        if name in item.padding.inputs
    ]
    filled: NDArray[np.bool_] = np.logical_and.reduce(alike)
    behind: Numbers = filled[:, ::-1].argmin(AXIS)
    return item.length - behind


def _some(item: Item, rows: Numbers, length: int) -> Item:
    """Return some rows of an item, cut to a length, and the rows wanted of them."""
    inputs = {
        name: array[rows, :length] if name in item.padding.inputs else array[rows]
        for name, array in item.inputs.items()
    }
    wanted = {}
    for name, numbers in item.rows.items():
        row, place = np.divmod(np.asarray(numbers, np.intp), item.length)
        own = np.isin(row, rows)
        wanted[name] = (np.searchsorted(rows, row[own]) * length + place[own]).tolist()
    return replace(item, inputs=inputs, rows=wanted, of_length=True)


def _join(
    item: Item, some: Sequence[Bucket], parts: Sequence[Tensors | Exception]
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs of an item; None where a bucket failed, or has not the expected shape."""
    outputs = [part for part in parts if not isinstance(part, Exception)]
    if len(outputs) < len(parts):
        return None
    try:
        return {
            name: _output(item, name, some, [one[name] for one in outputs]) for name in item.outputs
        }
    except ValueError:
        return None


def _output(
    item: Item, name: str, some: Sequence[Bucket], arrays: Sequence[NDArray[Any]]
) -> NDArray[Any]:
    """Return an output of an item, or its wanted rows, from those of the buckets."""
    if name in item.rows:
        row = np.asarray(item.rows[name], np.intp) // item.length
        wanted = np.empty((len(row), arrays[0].shape[-1]), arrays[0].dtype)
        for bucket, array in zip(some, arrays, strict=True):
            wanted[np.isin(row, bucket.rows)] = array
        return wanted
    is_long = name in item.padding.outputs
    rest = arrays[0].shape[AXIS + is_long :]
    count = sum(len(bucket.rows) for bucket in some)
    whole = np.zeros((count, *[item.length] * is_long, *rest), arrays[0].dtype)
    if whole.dtype.hasobject:
        whole.fill("")
    for bucket, array in zip(some, arrays, strict=True):
        if array.shape != (len(bucket.rows), *[bucket.item.length] * is_long, *rest):
            raise ValueError(f"output '{name}' has shape {list(array.shape)} in a bucket.")
        place_of = whole[:, : bucket.item.length] if is_long else whole
        place_of[bucket.rows] = array
    return whole
