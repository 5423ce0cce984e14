"""Find out whether a model's rows are independent of each other.

Requests of different callers may share a run only then. A first axis of any size is mostly a batch,
but it may be the nodes of a graph or the samples of a sound as well, and a model that quantizes its
activations while it runs takes one scale for all rows. No file says which; so rows that were made
up are run alone and together, and all outputs are compared.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.machine.shared_folder import digest_files, read_json, write_json
from backends.model_config import DYNAMIC
from clients.triton.server import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import Run, Tensors
    from backends.model_config import FileSignature, FileTensor

SIZES = (8, 32, 64, 224, 16, 4, 3, 2, 1)
"""What a dimension of any size is tried with: tokens, or the sides of a picture."""

KINDS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]] = {
    "between 0 and 1": lambda numbers, shape: numbers.random(shape),
    "normal": lambda numbers, shape: numbers.standard_normal(shape),
    "zero": lambda _, shape: np.zeros(shape),
    "large": lambda numbers, shape: 100 * numbers.random(shape),
    "large negative": lambda numbers, shape: -100 * numbers.random(shape),
}
"""The rows that are tried, one of each, and one that is nearly the first. Some functions show what
they do with a zero or a large number alone, as a softmax over rows of zeros does, or a scale that
the largest number sets; others only with rows that are near to each other, as where neighbours are
looked for."""

BATCHES = ((0, 1), (0, 0), (2, 3, 0), (1, 5, 0), (3, 2, 1, 0), (0, 4, 5, 2))
"""Which of these rows are run together, besides all of them in the largest batch."""

MOST_ROWS = 32
"""No larger batch is tried, whatever `max_batch_size` is."""

FLAGS = 2
TOPS = (30_000, 1000, 100, 10)
"""Below what the whole numbers of an input are. All of them are 0 and 1 at first: such are in every
vocabulary, and a mask and the parts of a text have no others. Then one input after the other has
the largest of these that the model takes: sounds, ids and counts have more."""

LEAST_SCALE = 1e-2
"""A row's largest number counts as this part of the batch's largest one at least: what is left of
large intermediate numbers may be all that a small row has."""

LIMIT_S = 60.0
"""What the test may take: at a start all other models wait for it."""

EDITION = 4
"""The edition of this test: results of another edition are not read."""


class _NoRun(Exception):
    """The model cannot be run with made-up inputs."""


class _NoTime(Exception):
    """The test would take too long."""


def row_dependence(
    signature: FileSignature, run: Run, most: int, *, of_tables: bool = False
) -> str:
    """Return why rows are not known to be independent; empty where they are.

    `of_tables` is whether the first axis has to be that of rows: made-up ones are often of one
    class, which then says nothing.
    """
    names, run = [spec.name for spec in signature.outputs], limit_time(run)
    try:
        size, rows, alone = _of_a_size(signature.inputs, names, run)
        if reason := _compare(rows, alone, names, run, most):
            return reason
        for name in [] if of_tables else names:
            first = alone[0][name]
            may_be_nan = first.dtype.kind == "f"
            if all(np.array_equal(first, one[name], equal_nan=may_be_nan) for one in alone[1:]):
                return f"output '{name}' is the same, whatever it was tried with"
        for spec in signature.inputs:
            if (wide := _wide(signature.inputs, spec, size, names, run)) and (
                reason := _compare(*wide, names, run, most)
            ):
                return reason
    except _NoRun as error:
        return f"it could not be run with made-up inputs ({error})"
    except _NoTime:
        return f"the test of its rows would take longer than {LIMIT_S:g} s"
    return ""


def limit_time(run: Run) -> Run:
    """Raise _NoTime where the rows so far say that the test would end after `LIMIT_S`."""
    begun, done = time.monotonic(), 0

    def limited(inputs: Tensors, names: Sequence[str]) -> Tensors:
        nonlocal done
        rows = len(next(iter(inputs.values())))
        if done and (time.monotonic() - begun) / done * (done + rows) > LIMIT_S:
            raise _NoTime
        done += rows
        return run(inputs, names)

    return limited


def make_up_rows(signature: FileSignature, run: Run) -> tuple[list[Tensors], list[Tensors]]:
    """Return made-up rows, one of each of `KINDS`, and their outputs; none where it fails."""
    try:
        return _of_a_size(signature.inputs, [spec.name for spec in signature.outputs], run)[1:]
    except _NoRun:
        return [], []


def _compare(
    rows: Sequence[Tensors], alone: Sequence[Tensors], names: Sequence[str], run: Run, most: int
) -> str:
    """Return how outputs differ where rows are run together; empty if not at all."""
    largest = tuple(index % len(rows) for index in range(min(most, MOST_ROWS)))
    for batch in (*BATCHES, largest):
        if len(batch) > most:
            continue
        stacked = {name: np.concatenate([rows[index][name] for index in batch]) for name in rows[0]}
        try:
            together = _run(run, stacked, names)
        except _NoRun as error:
            return f"it could not be run with {len(batch)} rows ({error})"
        for name in names:
            if reason := _difference([output[name] for output in alone], together[name], batch):
                return f"output '{name}' {reason}"
    return ""


def find_dependence(
    folder: Path | None, files: Iterable[Path], edition: str, try_it: Callable[[], str]
) -> str:
    """Return the cached result for a model's files, or compute and cache it."""
    if folder is None:
        return try_it()
    kept = folder / f"{digest_files(files, EDITION, edition)}.json"
    match read_json(kept):
        case {"against": str(known)}:
            return known
    against = try_it()
    write_json(kept, {"against": against})
    return against


def _of_a_size(
    specs: Sequence[FileTensor], names: Sequence[str], run: Run
) -> tuple[int, list[Tensors], list[Tensors]]:
    """Return a size of dynamic dimensions with which it can be run, rows, and outputs of each."""
    reason: Exception = _NoRun("it has no inputs")
    is_open = any(DYNAMIC in spec.shape[1:] for spec in specs)
    for size in SIZES if is_open else SIZES[:1]:
        rows = _rows(specs, size, {})
        try:
            return size, rows, [_run(run, row, names) for row in rows]
        except _NoRun as error:
            reason = error
    raise reason


def _wide(
    specs: Sequence[FileTensor], spec: FileTensor, size: int, names: Sequence[str], run: Run
) -> tuple[list[Tensors], list[Tensors]] | None:
    """Return rows with larger integers in one input, and the outputs of each.

    None where it has no whole numbers, or the model takes no larger ones.
    """
    data_type = spec.data_type.removeprefix("TYPE_")
    if not data_type.startswith(("INT", "UINT")):
        return None
    highest = np.iinfo(data_type.lower()).max
    for top in TOPS:
        rows = _rows(specs, size, {spec.name: min(top, highest)})
        try:
            return rows, [_run(run, row, names) for row in rows]
        except _NoRun:
            continue
    return None


def _rows(specs: Sequence[FileTensor], size: int, tops: Mapping[str, int]) -> list[Tensors]:
    """Return a row of each kind; `tops` bounds the integers of some inputs."""
    numbers = np.random.default_rng(0)
    rows: list[Tensors] = [
        {spec.name: _row(spec, size, kind, numbers, tops.get(spec.name, FLAGS)) for spec in specs}
        for kind in KINDS
    ]
    near = {
        name: (array * 1.001).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in rows[0].items()
    }
    return [*rows, near]


def _run(run: Run, inputs: Tensors, names: Sequence[str]) -> Tensors:
    try:
        return run(inputs, names)
    except _NoTime:
        raise
    except Exception as error:  # whatever the runtime raises
        raise _NoRun(" ".join(str(error).split())[:200]) from error


def _row(
    spec: FileTensor, size: int, kind: str, numbers: np.random.Generator, top: int
) -> NDArray[Any]:
    """Return one row of a tensor, with the batch dimension before it."""
    shape = (1, *(size if one == DYNAMIC else one for one in spec.shape[1:]))
    whole = numbers.integers(0, top, shape)
    if kind == "zero":
        whole = np.zeros_like(whole)
    elif kind == "large":
        whole = np.full_like(whole, top - 1)
    if spec.data_type == "TYPE_STRING":
        words: NDArray[Any] = np.array(["0", "1"], np.object_)[whole]
        return words
    if spec.dtype.startswith("float"):
        return KINDS[kind](numbers, shape).astype(spec.dtype)
    return whole.astype(spec.dtype)


def _difference(alone: Sequence[NDArray[Any]], together: NDArray[Any], batch: Sequence[int]) -> str:
    """Return how one output differs where rows are run together; empty if not."""
    if any(output.ndim == 0 or len(output) != 1 for output in alone):
        return "has not one row for each row of the inputs"
    if together.ndim == 0 or len(together) != len(batch):
        return f"has shape {list(together.shape)} for {len(batch)} rows"
    tolerance = TOLERANCES.get(together.dtype.name, 0.0)
    largest = [
        float(np.abs(one[np.isfinite(one)]).max(initial=0)) if tolerance else 0.0 for one in alone
    ]
    most = max(largest[index] for index in batch)
    for place, index in enumerate(batch):
        own, row = alone[index], together[place : place + 1]
        if row.shape != own.shape:
            return "has another shape where a row is run beside others"
        exact = ~np.isfinite(own) if tolerance else np.ones(own.shape, np.bool_)
        if not np.array_equal(row[exact], own[exact], equal_nan=bool(tolerance)):
            return "has other values where a row is run beside others"
        if not tolerance:
            continue
        off = np.abs(row[~exact].astype(np.float64) - own[~exact]).max(initial=0)
        if not off <= tolerance * max(largest[index], LEAST_SCALE * most):  # or no number
            return f"differs by {off:.3g} where a row is run beside others"
    return ""
