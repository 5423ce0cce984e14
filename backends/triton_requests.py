"""Convert Triton's requests to arrays and back, inside Triton's process."""

from __future__ import annotations

import json
import math
import operator
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from backends.batching.item import NONE, Item, PaddedTensors, RequestError, bare
from backends.batching.length_buckets import run_in_buckets
from backends.batching.run_items import run_items
from backends.machine.shared_memory import Share, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from backends.batching.item import ByRows, Run, Tensors
    from backends.completion import Completion

T = TypeVar("T")

# Parameters of a request; clients/triton/requests.py says what they are.
DEADLINE = "deadline_us"
ROWS = "rows"
ABOVE = "rows_above"
PADDING = "padding"

EXPECTED = {
    ROWS: "the numbers of rows for each output's name",
    ABOVE: "a list of a column's number and a number that is not negative for each output's name",
    PADDING: "a number for each of its inputs in 'inputs' and a list of names in 'outputs'",
}
"""What a parameter says of each model."""


def deadline_of(parameters: Mapping[str, Any]) -> float:
    """Return when the caller gives up, in microseconds since 1970; infinity by default."""
    given = parameters.get(DEADLINE, math.inf)
    try:
        return float(given)
    except (TypeError, ValueError):
        what = f"parameter {DEADLINE} is {str(given)[:100]!r}"
        raise RequestError(f"{what}; expected microseconds since 1970.") from None


@dataclass(frozen=True)
class TritonRequest:
    """One of Triton's requests: its tensors by name, or why it cannot be read.

    `deadline` is in microseconds since 1970; `sender` is for an answer that is not returned.
    """

    parameters: Mapping[str, Any]
    tensors: Tensors | Exception
    padding: PaddedTensors
    deadline: float
    outputs: tuple[str, ...]
    sender: Any

    @classmethod
    def of(
        cls, request: Any, model: str, outputs: Sequence[str], *, cached: bool = False
    ) -> TritonRequest:
        """Return what a request to `model` says; `outputs` are for one that names none.

        Where Triton keeps the answer for requests with equal inputs (`cached`), whatever their
        parameters are, all rows are answered.
        """
        tensors: Tensors | Exception
        parameters, padding, deadline = {}, NONE, math.inf
        try:
            parameters = json.loads(request.parameters() or "{}")
            deadline = deadline_of(parameters)
            for hint in (ROWS, ABOVE, PADDING) if cached else ():
                parameters.pop(hint, None)
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            padding = read_padding(parameters.get(PADDING), model)
            refuse_unknown(padding, tensors, outputs)
        except Exception as error:
            tensors = bare(error)
        wanted = tuple(dict.fromkeys(request.requested_output_names())) or tuple(outputs)
        return cls(parameters, tensors, padding, deadline, wanted, request.get_response_sender())

    def kept(self) -> TritonRequest:
        """Return it with copies of its tensors, so that Triton's are freed."""
        if isinstance(self.tensors, Exception):
            return self
        return replace(self, tensors={name: one.copy() for name, one in self.tensors.items()})

    def item(
        self, model: str, prepare: Callable[[Tensors], Tensors], tensors: Tensors, now: float
    ) -> Item:
        """Return what `model` is to run; raise RequestError where it is too late or does not fit.

        The deadline costs next to nothing, other than asking Triton for a cancelled request.
        """
        if self.deadline < now:
            raise RequestError("the caller does not wait for the answer any more.")
        rows, above = read_rows(self.parameters, model), read_thresholds(self.parameters, model)
        return Item(prepare(tensors), self.outputs, rows, above, self.padding)


@dataclass(frozen=True)
class RequestHandler:
    """How a model's requests are answered.

    Args:
        prepare: turns a request's tensors into what the model takes; raises RequestError for a
            request that does not fit, which then fails alone.
        in_buckets: whether rows of a request that are near in length had better be run by
            themselves, as on a CPU; on a GPU one run is best.
        by_rows: runs that compute some rows alone, where the model can.
        cached: whether Triton keeps the answers in its response cache.

    """

    model: str
    outputs: Sequence[str]
    prepare: Callable[[Tensors], Tensors]
    run: Run
    max_batch_size: int
    share: Share
    in_buckets: bool
    by_rows: ByRows | None = None
    cached: bool = False
    _one_sends: Lock = field(default_factory=Lock)

    def asked(self, requests: Sequence[Any]) -> list[TritonRequest]:
        """Return what Triton's requests say."""
        return [
            TritonRequest.of(request, self.model, self.outputs, cached=self.cached)
            for request in requests
        ]

    def responses(self, asked: Sequence[TritonRequest]) -> list[Any]:
        """Return a response per request, in order; None for those already sent."""
        results = self.results(asked)
        taken = sum(_size(request.tensors) for request in asked)
        if self.share.has_room(taken + sum(_size(result) for result in results)):
            return [_response(result) for result in results]
        _send(asked, results)
        return [None] * len(results)

    def results(self, asked: Sequence[TritonRequest]) -> list[Tensors | Exception]:
        """Return for each request its outputs or its error; any thread may call."""
        try:
            return self._results(asked)
        except Exception as error:
            return [bare(error)] * len(asked)

    def send(self, asked: Sequence[TritonRequest], results: Sequence[Tensors | Exception]) -> None:
        """Answer requests that Triton does not wait for.

        Theirs are `kept` elsewhere; what waits now in shared memory may be as large.
        """
        with self._one_sends:  # no more shared memory than one run needs
            _send(asked, results)

    def _results(self, asked: Sequence[TritonRequest]) -> list[Tensors | Exception]:
        """Return for each request its outputs, or what went wrong."""
        results: list[Tensors | Exception] = [RequestError("the request was not run.")] * len(asked)
        items: dict[int, Item] = {}
        now = time.time() * 1e6
        for index, request in enumerate(asked):
            if isinstance(request.tensors, Exception):
                results[index] = request.tensors
                continue
            try:
                items[index] = request.item(self.model, self.prepare, request.tensors, now)
            except ValueError as error:
                results[index] = bare(error)
        taken = [_size(item.inputs) for item in items.values()]
        try:
            self.share.reserve(sum(_size(request.tensors) for request in asked), _grow)
        except TooLarge as error:
            return [bare(error)] * len(asked)
        in_buckets = self.in_buckets and any(item.length for item in items.values())
        run_all = run_in_buckets if in_buckets else run_items
        came = run_all(
            list(items.values()),
            self.run,
            max_batch_size=self.max_batch_size,
            by_rows=self.by_rows,
        )
        for index, own, result in zip(items, taken, came, strict=True):
            needed = own + _size(result)
            fits = self.share.has_room(needed)
            results[index] = result if fits else self.share.refusal(needed)
        return results


def _send(asked: Sequence[TritonRequest], results: Sequence[Tensors | Exception]) -> None:
    """Send answers one by one, so that each frees its shared memory.

    What fails while it is sent cannot be replaced by an error, and Triton holds the request,
    and its model, for good.
    """
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    for request, result in zip(asked, results, strict=True):
        try:
            request.sender.send(_response(result), flags=final)
        except Exception as error:  # the others are answered all the same
            pb_utils.Logger.log_error(f"an answer could not be sent: {error}")


def read_rows(parameters: Mapping[str, Any], model: str) -> dict[str, list[int]]:
    """Return the rows that a request wants of some outputs of a model; raise RequestError."""

    def read(outputs: Mapping[str, Any]) -> dict[str, list[int]]:
        return {name: [operator.index(row) for row in some] for name, some in outputs.items()}

    return read_hint(ROWS, parameters.get(ROWS), model, read) or {}


def read_thresholds(parameters: Mapping[str, Any], model: str) -> dict[str, tuple[int, float]]:
    """Return column and threshold for outputs whose rows are wanted so; raise RequestError."""

    def read(outputs: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
        above = {
            name: (operator.index(column), float(least))
            for name, (column, least) in outputs.items()
        }
        if not all(least >= 0 for _, least in above.values()):
            raise ValueError(ABOVE)
        return above

    return read_hint(ABOVE, parameters.get(ABOVE), model, read) or {}


@lru_cache(maxsize=64)  # a client says the same with every request
def read_padding(text: str | None, model: str) -> PaddedTensors:
    """Return how rows of a request may be padded, from its parameter; raise RequestError."""

    def read(said: Mapping[str, Any]) -> PaddedTensors:
        if not isinstance(said["outputs"], list):
            raise TypeError(PADDING)
        inputs = {name: operator.index(number) for name, number in said["inputs"].items()}
        return PaddedTensors(inputs, tuple(map(str, said["outputs"])))

    return read_hint(PADDING, text, model, read) or NONE


def read_hint(parameter: str, text: str | None, model: str, read: Callable[[Any], T]) -> T | None:
    """Return what a parameter says of a model, as `read` makes it of JSON; None where nothing.

    Raises RequestError: the parameter is not what it should be.
    """
    try:
        said = None if text is None else json.loads(text).get(model)
        return None if said is None else read(said)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        raise RequestError(
            f"parameter '{parameter}' was expected to be JSON of a model's name with "
            f"{EXPECTED[parameter]}, but it is something else."
        ) from None


def refuse_unknown(
    padding: PaddedTensors, inputs: Collection[str], outputs: Collection[str]
) -> None:
    """Raise RequestError where an input or output to be padded is missing."""
    for kind, named, known in (
        ("input", padding.inputs, inputs),
        ("output", padding.outputs, outputs),
    ):
        for name in named:
            if name not in known:
                raise RequestError(
                    f"parameter '{PADDING}' names the {kind} '{name}', but there are "
                    f"{', '.join(known)}."
                )


def log_completion(model_name: str, completion: Completion) -> None:
    """Write to Triton's log what a file has added to a configuration."""
    if completion.info:
        pb_utils.Logger.log_info(f"model '{model_name}': {completion.info}")
    if completion.warning:
        what, fix = completion.warning
        log_warnings(model_name, [f"{what}; {fix}"])


def log_warnings(model_name: str, warnings: Sequence[str]) -> None:
    """Write each sentence to Triton's log, with the model's name before it."""
    for warning in warnings:
        pb_utils.Logger.log_warn(f"model '{model_name}': {warning}")


def _grow(size: int) -> None:
    # A request to a model that does not exist: its tensor is put into this instance's shared
    # memory, which grows for it. Triton answers with an error, and the tensor is gone again.
    tensor = pb_utils.Tensor("room", np.empty(size, np.uint8))
    pb_utils.InferenceRequest(
        model_name="", inputs=[tensor], requested_output_names=["room"]
    ).exec()


def _size(tensors: Tensors | Exception) -> int:
    """Return the bytes of tensors."""
    if isinstance(tensors, Exception):
        return 0
    return sum(_bytes(tensor) for tensor in tensors.values())


def _bytes(tensor: NDArray[Any]) -> int:
    if tensor.dtype != np.object_:
        return tensor.nbytes
    # As Triton has texts: each with its length before it, in four bytes.
    return sum(4 + len(x if isinstance(x, bytes) else str(x).encode()) for x in tensor.flat)


def _response(result: Tensors | Exception) -> Any:
    if not isinstance(result, Exception):
        try:
            return pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor(name, array) for name, array in result.items()]
            )
        except Exception as error:
            result = bare(error)
    code = pb_utils.TritonError.INTERNAL
    if isinstance(result, RequestError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(result, TooLarge):
        code = pb_utils.TritonError.UNSUPPORTED  # no other error here has this code
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(result), code))
