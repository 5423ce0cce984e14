"""Group requests, run each group once, split the outputs, isolate failures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import AXIS, RequestError, RunRows, bare
from backends.batching.padding import concatenate_padded, near

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from backends.batching.item import Above, ByRows, Item, Run, Tensors


def run_items(
    items: Sequence[Item], run: Run, *, max_batch_size: int, by_rows: ByRows | None = None
) -> list[Tensors | Exception]:
    """Return for each item, in order, its outputs by name or its error.

    Items share a run if their tensors differ only in the first dimension, or if padding them is
    allowed and costs less than a separate run, and if together they have at most `max_batch_size`
    rows. A run is asked for what any of its items wants. Where a shared run fails, each of its
    items is run alone, so that only the one at fault fails. With `max_batch_size` 0 there is no
    batch dimension and every item is run alone. Where only some rows are wanted of an output, and
    their place in the run is known, or a column tells which, `by_rows` is run in place of `run`.
    """
    answers: list[Tensors | Exception] = [RequestError("the request was not run.")] * len(items)
    if max_batch_size <= 0:
        for index, item in enumerate(items):
            try:
                answers[index] = _select_outputs(item, run(item.inputs, item.outputs))
            except Exception as error:
                answers[index] = bare(error)
        return answers
    rows: dict[int, int] = {}
    for index, item in enumerate(items):
        try:
            rows[index] = rows_of(item, max_batch_size)
        except RequestError as error:
            answers[index] = bare(error)
    for group in groups(items, rows, max_batch_size):
        answers_of_group = _together(
            [items[index] for index in group], [rows[index] for index in group], run, by_rows
        )
        for index, answer in zip(group, answers_of_group, strict=True):
            answers[index] = answer
    return answers


def rows_of(item: Item, max_batch_size: int) -> int:
    """Return the size of the batch dimension of an item.

    Raises RequestError: its inputs have none, or not the same one, or it is too large.
    """
    sizes = {name: array.shape[0] if array.ndim else None for name, array in item.inputs.items()}
    counts = set(sizes.values())
    if len(counts) != 1 or None in counts:
        said = ", ".join(f"'{name}' has {size}" for name, size in sizes.items()) or "there is none"
        raise RequestError(f"the inputs were expected to have one batch size, but {said}.")
    count = int(counts.pop() or 0)
    if count > max_batch_size:
        raise RequestError(
            f"the batch size is {count}, but at most {max_batch_size} is expected (max_batch_size)."
        )
    return count


def groups(items: Sequence[Item], rows: Mapping[int, int], max_batch_size: int) -> list[list[int]]:
    """Return groups of indices of items that share a run.

    `rows` has the size of the batch dimension of every item that takes part.
    """
    alike: dict[object, list[int]] = {}
    for index in rows:
        alike.setdefault(items[index].key, []).append(index)
    made = []
    for indices in alike.values():
        lengths = [items[index].length for index in indices]
        is_even = len(set(lengths)) == 1
        counts = [rows[index] for index in indices]
        for places in [range(len(indices))] if is_even else near(lengths, counts):
            group: list[int] = []
            for place in places:
                if group and counts[place] + sum(rows[one] for one in group) > max_batch_size:
                    made.append(group)
                    group = []
                group.append(indices[place])
            made.append(group)
    return made


def _together(
    items: Sequence[Item], counts: Sequence[int], run: Run, by_rows: ByRows | None
) -> list[Tensors | Exception]:
    names = tuple(dict.fromkeys(name for item in items for name in item.outputs))
    rows = {
        name: some
        for name in (by_rows.outputs if by_rows else ())
        if name in names and (some := _rows_of_run(name, items, counts))
    }
    above = {
        name: one
        for name in (by_rows.outputs if by_rows and by_rows.run_above else ())
        if name in names and (one := _above_of_run(name, items))
    }
    try:
        inputs = _concatenate(items)
        if by_rows and rows:
            outputs = by_rows.run(inputs, names, rows)
        elif by_rows and by_rows.run_above and above:
            outputs = by_rows.run_above(inputs, names, above)
        else:
            outputs = run(inputs, names)
        return _split(outputs, items, counts, rows)
    except Exception as error:
        if len(items) == 1:
            # Once more with all rows: those that it names may be wrong.
            return _together(items, counts, run, None) if rows or above else [bare(error)]
    return [
        answer
        for item, count in zip(items, counts, strict=True)
        for answer in _together([item], [count], run, by_rows)
    ]


def _rows_of_run(name: str, items: Sequence[Item], counts: Sequence[int]) -> RunRows | None:
    """Return the rows that items want of an output; None where not all are known."""
    longest = max(item.length for item in items)
    numbers: list[int] = []
    start = 0
    for item, count in zip(items, counts, strict=True):
        if name in item.outputs:
            some, own = item.rows.get(name), item.length
            if some is None or not own or name not in item.padding.outputs:
                return None
            if some and not 0 <= min(some) <= max(some) < count * own:
                return None
            numbers += [(start + number // own) * longest + number % own for number in some]
        start += count
    return RunRows((start, longest), numbers) if 0 < len(numbers) <= start * longest else None


def _above_of_run(name: str, items: Sequence[Item]) -> Above | None:
    """Return the column and least threshold by which items want rows of an output; else None."""
    wanted = {item.above.get(name) for item in items if name in item.outputs}
    is_other = any(name in item.rows or name in item.padding.outputs for item in items)
    if is_other or None in wanted or len({one[0] for one in wanted if one}) != 1:
        return None
    return min(one for one in wanted if one)


def _concatenate(items: Sequence[Item]) -> Tensors:
    first = items[0]
    if len(items) == 1:
        return first.inputs
    return {
        name: concatenate_padded(
            [item.inputs[name] for item in items], first.padding.inputs.get(name, 0)
        )
        for name in first.inputs
    }


def _split(
    outputs: Tensors, items: Sequence[Item], counts: Sequence[int], rows: Mapping[str, RunRows]
) -> list[Tensors | Exception]:
    """Return the outputs of each item; `rows` has those of which only some are."""
    total = sum(counts)
    for name, array in outputs.items():
        if name not in rows and (array.ndim == 0 or array.shape[0] != total):
            raise ValueError(
                f"output '{name}' has shape {list(array.shape)}, but a first dimension of {total} "
                "was expected, the batch size; a model whose outputs do not follow it needs "
                "max_batch_size 0."
            )
    longest = max(item.length for item in items)
    answers: list[Tensors | Exception] = []
    start, begin = 0, dict.fromkeys(rows, 0)
    for item, count in zip(items, counts, strict=True):
        own = {}
        for name in item.outputs:
            array = outputs[name]
            if name in rows:
                end = begin[name] + len(item.rows[name])
                own[name] = array[begin[name] : end]
                begin[name] = end
            elif item.length < longest and name in item.padding.outputs:
                if array.ndim <= AXIS or array.shape[AXIS] != longest:
                    raise ValueError(
                        f"output '{name}' has shape {list(array.shape)}, but was said to be as "
                        f"long as the inputs, {longest}."
                    )
                own[name] = array[start : start + count, : item.length]
            else:
                own[name] = array[start : start + count]
        try:
            answers.append(_select_outputs(item, own, picked_already=rows))
        except (ValueError, LookupError) as error:  # the others are answered all the same
            answers.append(bare(error))
        start += count
    return answers


def _select_outputs(
    item: Item, outputs: Tensors, *, picked_already: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return the outputs that an item wants, with the wanted rows of each."""
    wanted = {}
    for name in item.outputs:
        array = outputs[name]
        if name in item.rows:
            if name not in picked_already:
                if item.of_length and array.shape[1:-1] != (item.length,):
                    raise ValueError(f"output '{name}' has shape {list(array.shape)} in a bucket.")
                array = pick_rows(array, item.rows[name])
        elif name in item.above:
            array = pick_rows_above(array, *item.above[name])
        wanted[name] = np.asarray(array, order="C")
    return wanted


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
