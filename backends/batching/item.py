"""One request of a batch: its tensors, its outputs, and how it may be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.model_config import DYNAMIC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from backends.model_config import FileTensor

    Tensors = Mapping[str, NDArray[Any]]
    Above = tuple[int, float]
    """The number of a column, and what it has to exceed where a row is wanted."""
    Run = Callable[[Tensors, Sequence[str]], Tensors]
    """One run of the model.

    Takes tensors by name and the names of the outputs that are wanted, which it returns by name.
    Raises whatever the runtime raises.
    """


AXIS = 1
"""What is filled up; axis 0 is the batch."""


@dataclass(frozen=True, slots=True)
class PaddedTensors:
    """Which inputs of a request may be padded, and which outputs trimmed.

    `inputs` may be filled up along `AXIS`, all of one length, with these numbers, and their rows
    cut where they end in them; `outputs` are as long as these inputs, along the same axis.
    """

    inputs: Mapping[str, int]
    outputs: tuple[str, ...]


NONE = PaddedTensors({}, ())


class RequestError(ValueError):
    """A request cannot be answered for a reason of its own; its sender reads it."""


def bare(error: Exception) -> Exception:
    """Return an error without its traceback, to be kept as an answer.

    These hold the request's tensors, and often the error itself: what is in such a circle stays,
    in shared memory too, until Python looks for it, for which a model's process makes too little.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


@dataclass(frozen=True)
class Item:
    """One request: its tensors by name, and the names of the wanted outputs."""

    inputs: Tensors
    outputs: tuple[str, ...]
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of which outputs only some rows are wanted, and which; see `pick_rows`."""
    above: Mapping[str, Above] = field(default_factory=dict)
    """Likewise, where a column tells which; see `pick_rows_above`."""
    padding: PaddedTensors = NONE
    """How its rows may be made longer or shorter."""
    of_length: bool = False
    """Whether outputs with `rows` have to be as long as `length`: these were counted so."""

    @cached_property
    def key(self) -> object:
        """A key that is equal for requests whose tensors can be concatenated once padded."""
        loose = self.padding if self.length else NONE
        shapes = sorted(
            (
                name,
                array.dtype.str,
                array.shape[AXIS + 1 if name in loose.inputs else AXIS :],
                loose.inputs.get(name),
            )
            for name, array in self.inputs.items()
        )
        return (*shapes, loose.outputs)

    @cached_property
    def length(self) -> int:
        """The length of the padded inputs; 0 where none is, or they differ."""
        sizes = {
            array.shape[AXIS] if array.ndim > AXIS else 0
            for name, array in self.inputs.items()
            if name in self.padding.inputs
        }
        return sizes.pop() if len(sizes) == 1 else 0


@dataclass(frozen=True)
class RunRows:
    """The wanted rows of one output of a run.

    `dims` are the dimensions before its last one: a batch, and rows in it. `numbers` are of those
    that are wanted, at least one, counted over both.
    """

    dims: tuple[int, int]
    numbers: list[int]


@dataclass(frozen=True)
class ByRows:
    """Runs that compute, or return, only some rows of some outputs.

    `run` takes these rows by output besides, which it returns [rows, size of the last dimension].
    `run_above`, where there is one, takes a column and a threshold for each of these outputs, and
    returns them as `pick_rows_above` does.
    """

    outputs: Collection[str]
    run: Callable[[Tensors, Sequence[str], Mapping[str, RunRows]], Tensors]
    run_above: Callable[[Tensors, Sequence[str], Mapping[str, Above]], Tensors] | None = None


def conform(inputs: Tensors, specs: Mapping[str, FileTensor]) -> dict[str, NDArray[Any]]:
    """Return the tensors in the shapes of the file, strings as str.

    A scalar loses its dimension.

    Raises RequestError: a tensor is unknown, its shape is not one that the file accepts, or a
    string is not UTF-8.
    """
    conforming = {}
    for name, array in inputs.items():
        spec = specs.get(name)
        if spec is None:
            raise RequestError(
                f"input '{name}' is unknown, but the model expects {', '.join(specs)}."
            )
        is_like_spec = array.ndim == len(spec.shape) and all(
            want in (DYNAMIC, got) for got, want in zip(array.shape, spec.shape, strict=True)
        )
        if spec.has_rank and not spec.shape and array.size == 1:
            array = array.reshape(())  # noqa: PLW2901  as the file has it
        elif spec.has_rank and not is_like_spec:
            raise RequestError(
                f"input '{name}' has shape {list(array.shape)}, but the model expects "
                f"{list(spec.shape)}."
            )
        conforming[name] = decode_texts(name, array) if array.dtype == np.object_ else array
    return conforming


def decode_texts(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of str for one of bytes; RequestError if they are not UTF-8."""
    flat = np.empty(array.size, dtype=object)
    for index, element in enumerate(array.flat):
        try:
            flat[index] = element.decode() if isinstance(element, bytes) else str(element)
        except UnicodeDecodeError as error:
            raise RequestError(
                f"element {index} of input '{name}' was expected to be UTF-8, but {error.reason} "
                f"at byte {error.start}."
            ) from None
    return flat.reshape(array.shape)
