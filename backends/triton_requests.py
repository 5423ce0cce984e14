"""Convert Triton's requests to arrays and back, inside Triton's process."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils

from backends.batching.item import NONE, Item, PaddedTensors, RequestError, bare, conform
from backends.batching.length_buckets import run_in_buckets
from backends.batching.run_items import run_items
from backends.machine.shared_memory import Share, TooLarge
from backends.model_config import max_batch_size
from backends.sequence_state import NO_SEQUENCE, PartOfSequence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from backends.batching.item import Tensors
    from backends.model_config import FileSignature
    from backends.onnxruntime.gpu_session import GpuSession
    from backends.schedule import ScheduledSession
    from backends.sequence_state import SequenceStates

    Session = GpuSession | ScheduledSession

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

DECODERS: Mapping[str, msgspec.json.Decoder[Any]] = {
    ROWS: msgspec.json.Decoder(dict[str, dict[str, list[int]] | None]),
    ABOVE: msgspec.json.Decoder(
        dict[str, dict[str, tuple[int, Annotated[float, msgspec.Meta(ge=0)]]] | None]
    ),
    PADDING: msgspec.json.Decoder(dict[str, PaddedTensors | None]),
}


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
    sequence: PartOfSequence

    def kept(self) -> TritonRequest:
        """Return it with copies of its tensors, so that Triton's are freed."""
        if isinstance(self.tensors, Exception):
            return self
        return replace(self, tensors={name: one.copy() for name, one in self.tensors.items()})


class RequestHandler:
    """How a model's requests are answered."""

    def __init__(
        self,
        config: Mapping[str, Any],
        signature: FileSignature,
        session: Session,
        share: Share,
        states: SequenceStates,
    ) -> None:
        self._states = states
        self._model = config["name"]
        self._dims = {tensor["name"]: len(tensor["dims"]) for tensor in config["output"]}
        self._max_batch_size = max_batch_size(config)
        # Triton keeps the answer for requests with equal inputs, whatever their parameters are.
        self._is_cached = bool((config.get("response_cache") or {}).get("enable"))
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._session = session
        self._share = share
        self._one_sends = Lock()
        self.keeps_item = False
        self.item: Item | None = None
        """While `keeps_item`, a request that was answered, with arrays of its own."""

    def read(self, request: Any) -> TritonRequest:
        """Return what one of Triton's requests says."""
        tensors: Tensors | Exception
        parameters, padding, deadline = {}, NONE, math.inf
        outputs = tuple(self._dims)
        try:
            parameters = json.loads(request.parameters() or "{}")
            deadline = deadline_of(parameters)
            for hint in EXPECTED if self._is_cached else ():
                parameters.pop(hint, None)  # all rows are answered
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            padding = read_hint(PADDING, parameters.get(PADDING), self._model) or NONE
            refuse_unknown("input", padding.inputs, tensors)
            refuse_unknown("output", padding.outputs, outputs)
        except Exception as error:
            tensors = bare(error)
        wanted = tuple(dict.fromkeys(request.requested_output_names())) or outputs
        sender, sequence = request.get_response_sender(), NO_SEQUENCE
        if self._states.outputs:
            flags = request.flags()
            sequence = PartOfSequence(
                request.correlation_id(),
                start=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
                end=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
            )
        return TritonRequest(parameters, tensors, padding, deadline, wanted, sender, sequence)

    def responses(self, asked: Sequence[TritonRequest]) -> list[Any]:
        """Return a response per request, in order; None for those already sent."""
        results = self.results(asked)
        taken = sum(_size(request.tensors) for request in asked)
        if self._share.has_room(taken + sum(_size(result) for result in results)):
            return [_response(result) for result in results]
        _send(asked, results)
        return [None] * len(results)

    def send(self, asked: Sequence[TritonRequest], results: Sequence[Tensors | Exception]) -> None:
        """Answer requests that Triton does not wait for.

        Theirs are `kept` elsewhere; what waits now in shared memory may be as large.
        """
        with self._one_sends:  # no more shared memory than one run needs
            _send(asked, results)

    def results(self, asked: Sequence[TritonRequest]) -> list[Tensors | Exception]:
        """Return for each request its outputs, or what went wrong; any thread may call."""
        try:
            self._share.reserve(sum(_size(request.tensors) for request in asked), _grow)
            return self._results(asked)
        except Exception as error:
            return [bare(error)] * len(asked)

    def _results(self, asked: Sequence[TritonRequest]) -> list[Tensors | Exception]:
        results: list[Tensors | Exception] = [RequestError("the request was not run.")] * len(asked)
        items: dict[int, Item] = {}
        now = time.time() * 1e6
        for index, request in enumerate(asked):
            if isinstance(request.tensors, Exception):
                results[index] = request.tensors
                continue
            try:
                items[index] = self._item(request, request.tensors, now)
            except ValueError as error:
                results[index] = bare(error)
                self._states.end(request.sequence, error)
        # On a GPU one run is best; on a CPU rows of a request that are near in length are.
        in_buckets = self._session.on_cpu and any(item.length for item in items.values())
        came = (run_in_buckets if in_buckets else run_items)(
            list(items.values()),
            self._session.run,
            max_batch_size=self._max_batch_size,
            by_rows=self._session.by_rows,
        )
        for (index, item), result in zip(items.items(), came, strict=True):
            needed = _size(item.inputs) + _size(result)
            has_room = self._share.has_room(needed)
            answer = result if has_room else self._share.refusal(needed)
            self._states.end(asked[index].sequence, answer)
            if isinstance(answer, Exception):
                results[index] = answer
            else:
                if self.keeps_item and self.item is None:
                    own = {name: array.copy() for name, array in item.inputs.items()}
                    self.item = replace(item, inputs=own)
                # a scalar has the dimensions that are configured
                results[index] = {
                    name: array if array.ndim else array.reshape([1] * self._dims.get(name, 0))
                    for name, array in answer.items()
                    if name in asked[index].outputs
                }
        return results

    def _item(self, request: TritonRequest, tensors: Tensors, now: float) -> Item:
        """Return what is to be run; raise RequestError where it is too late or does not fit.

        The deadline costs next to nothing, other than asking Triton for a cancelled request.
        """
        if request.deadline < now:
            raise RequestError("the caller does not wait for the answer any more.")
        rows = read_hint(ROWS, request.parameters.get(ROWS), self._model) or {}
        above = read_hint(ABOVE, request.parameters.get(ABOVE), self._model) or {}
        inputs = conform({**tensors, **self._states.begin(request.sequence)}, self._specs)
        outputs = tuple(dict.fromkeys((*request.outputs, *self._states.outputs)))
        return Item(inputs, outputs, rows, above, request.padding)


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


def deadline_of(parameters: Mapping[str, Any]) -> float:
    """Return when the caller gives up, in microseconds since 1970; infinity by default."""
    given = parameters.get(DEADLINE, math.inf)
    try:
        return float(given)
    except (TypeError, ValueError):
        what = f"parameter {DEADLINE} is {str(given)[:100]!r}"
        raise RequestError(f"{what}; expected microseconds since 1970.") from None


def read_hint(parameter: str, text: str | None, model: str) -> Any:
    """Return what a parameter says of a model; `None` where it says nothing; raise RequestError."""
    try:
        return None if text is None else DECODERS[parameter].decode(text).get(model)
    except (TypeError, ValueError, RecursionError):
        raise RequestError(
            f"parameter '{parameter}' was expected to be JSON of a model's name with "
            f"{EXPECTED[parameter]}, but it is something else."
        ) from None


def refuse_unknown(kind: str, named: Iterable[str], known: Collection[str]) -> None:
    """Raise RequestError where an input or output to be padded is missing."""
    for name in named:
        if name not in known:
            raise RequestError(
                f"parameter '{PADDING}' names the {kind} '{name}', but there are "
                f"{', '.join(known)}."
            )


def _grow(size: int) -> None:
    # A request to a model that does not exist: its tensor is put into this instance's shared
    # memory, which grows for it. Triton answers with an error, and the tensor is gone again.
    tensor = pb_utils.Tensor("room", np.empty(size, np.uint8))
    pb_utils.InferenceRequest(
        model_name="", inputs=[tensor], requested_output_names=["room"]
    ).exec()


def size_of(request: TritonRequest) -> int:
    return _size(request.tensors)


def _size(tensors: Tensors | Exception) -> int:
    """Return the bytes of tensors."""
    return 0 if isinstance(tensors, Exception) else sum(map(_bytes, tensors.values()))


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
