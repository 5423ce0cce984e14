"""Implicit state: tensors that a model gets back with the next request of their sequence.

Triton's core keeps them for native backends alone; what it means by `sequence_batching { state }`
is done here, as `docs/user_guide/implicit_state_management.md` of Triton's server says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import RequestError
from backends.model_config import DYNAMIC, ModelConfigError, dims_of, max_batch_size, unable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from backends.batching.item import Tensors

INITIAL = "initial_state"
"""The folder of a model with the files of `data_file`."""

ABANDONED = 2
"""States are kept for so many times the sequences that Triton goes on with: it does not say which
it has given up, after `max_sequence_idle_microseconds`."""


@dataclass(frozen=True, slots=True)
class PartOfSequence:
    """What Triton says of a request's sequence; `identity` is 0 or empty for one of its own."""

    identity: int | str
    start: bool
    end: bool


NO_SEQUENCE = PartOfSequence(0, start=False, end=False)


class SequenceStates:
    """The states of the sequences of one instance; one thread at a time uses them.

    Raises ModelConfigError: a state at the beginning is not as its tensor.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        batching = config.get("sequence_batching") or {}
        states = batching.get("state") or []
        self.outputs = {state["output_name"]: state["input_name"] for state in states}
        self._initial = {one["input_name"]: _initial(config, one, folder) for one in states}
        slots = (batching.get("oldest") or {}).get("max_candidate_sequences") or 0
        self._most = ABANDONED * max(1, int(slots), max_batch_size(config))
        self._kept: dict[int | str, Tensors] = {}  # the last used at the end

    def begin(self, part: PartOfSequence) -> Tensors:
        """Return the states for a request.

        Raises RequestError: they are not there any more, and zeros would be a wrong answer.
        """
        if part.start or not part.identity or not self.outputs:
            return self._initial
        if part.identity not in self._kept:
            raise RequestError(
                "the state of this sequence is gone: others have been begun since; begin it again."
            )
        return self._kept[part.identity]

    def end(self, part: PartOfSequence, result: Tensors | Exception) -> None:
        """Keep what a request has made of its states, until the sequence ends.

        One that failed leaves them as they were.
        """
        states = self._kept.pop(part.identity, None)
        if part.end or not part.identity or not self.outputs:
            return
        if not isinstance(result, Exception):
            states = {name: result[output].copy() for output, name in self.outputs.items()}
        elif part.start:
            states = self._initial
        if states is not None:
            self._kept[part.identity] = states
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]


def state_tensors(config: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the states as the inputs, or outputs, that a file has for them."""
    states = (config.get("sequence_batching") or {}).get("state") or []
    return [{**state, "name": state[f"{kind}_name"]} for state in states]


def _initial(config: Mapping[str, Any], state: Mapping[str, Any], folder: Path) -> NDArray[Any]:
    """Return a state at the beginning of a sequence: zeros, or what a file has."""
    name = state["input_name"]
    first: Sequence[Mapping[str, Any]] = state.get(INITIAL) or [{**state, "zero_data": True}]
    dims, kind = dims_of(first[0]), first[0]["data_type"]
    if DYNAMIC in dims:
        what = f"{unable(config)}: the state '{name}' has dims {dims}, which say no size."
        raise ModelConfigError(what, f"write {INITIAL} {{ dims: … zero_data: true name: … }}")
    if kind != state["data_type"] or kind == "TYPE_STRING" or len(first) > 1:
        what = f"{unable(config)}: the state '{name}' has an {INITIAL} of {kind}, or several."
        raise ModelConfigError(what, f"expected one of {state['data_type']}, a type of numbers")
    dtype = np.dtype(kind.removeprefix("TYPE_").lower().replace("fp", "float"))
    shape = ([1] if max_batch_size(config) else []) + dims
    if not (file := first[0].get("data_file")):
        return np.zeros(shape, dtype)
    try:
        content = (folder / INITIAL / file).read_bytes()
    except OSError as error:
        what = f"{unable(config)}: the state '{name}' has the data_file '{file}', which "
        raise ModelConfigError(
            f"{what}cannot be read ({error.strerror}).", f"put it into {folder / INITIAL}"
        ) from error
    if len(content) != math.prod(shape) * dtype.itemsize:
        what = f"{unable(config)}: the state '{name}' has a data_file of {len(content)} bytes, but "
        raise ModelConfigError(f"{what}{shape} of {kind} are {math.prod(shape) * dtype.itemsize}.")
    return np.frombuffer(content, dtype).reshape(shape)
