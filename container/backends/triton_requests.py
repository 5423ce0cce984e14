"""From Triton's request objects to arrays and back; imported only inside Triton's process."""

from __future__ import annotations

import json
import operator
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from container.backends.batching import Item, RequestError, run_items
from container.backends.shared_memory import Share, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from container.backends.batching import Run, Tensors

# Parameters of a request; clients/triton.py says what they are.
DEADLINE = "deadline_us"
ROWS = "rows"


def answer(  # noqa: PLR0913 - all that one batch needs
    requests: Sequence[Any],
    prepare: Callable[[Tensors], Tensors],
    run: Run,
    *,
    outputs: Sequence[str],
    max_batch_size: int,
    share: Share,
) -> list[Any]:
    """Return one response per request, in order; None for one that was sent here already.

    `prepare` turns a request's tensors into what the model takes and raises RequestError for a
    request that does not fit, which then fails alone. `outputs` are the configured names, for
    a request that names none. `share` is the shared memory in which inputs and answers lie.
    """
    responses: list[Any] = [None] * len(requests)
    items: dict[int, Item] = {}
    now = time.time() * 1e6
    for index, request in enumerate(requests):
        try:
            parameters = json.loads(request.parameters() or "{}")
            refuse_late(parameters, now)
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            wanted = tuple(request.requested_output_names()) or tuple(outputs)
            items[index] = Item(prepare(tensors), wanted, wanted_rows(parameters))
        except Exception as error:
            responses[index] = _response(error)
    taken = sum(_bytes(item.inputs) for item in items.values())
    share.reserve(taken, _grow)
    results = run_items(list(items.values()), run, max_batch_size=max_batch_size)
    sizes = [0 if isinstance(result, Exception) else _bytes(result) for result in results]
    together = share.has_room(taken + sum(sizes))
    for index, size in zip(items, sizes, strict=True):
        result = results.pop(0)
        try:
            fits = share.has_room(taken + size)
            response = _response(result if fits else share.refusal(taken + size))
        except Exception as error:
            response = _response(error)
        if together:
            responses[index] = response
        else:
            # Gone from shared memory when this returns, so that the next one has room.
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            requests[index].get_response_sender().send(response, flags=final)
    return responses


def refuse_late(parameters: Mapping[str, Any], now: float) -> None:
    """Raise RequestError where the caller has given up already; `now` is as `DEADLINE` is.

    This costs next to nothing, other than asking Triton whether the request was cancelled.
    """
    if parameters.get(DEADLINE, now) < now:
        raise RequestError("nobody waits for the answer any more.")


def wanted_rows(parameters: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the rows that a request wants of some outputs.

    Raises:
        RequestError: the parameter is not what it should be.

    """
    text = parameters.get(ROWS, "{}")
    try:
        rows = {
            name: [operator.index(row) for row in some] for name, some in json.loads(text).items()
        }
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise RequestError(
            f"parameter '{ROWS}' was expected to be JSON of an output's name and the numbers of "
            "its rows, but it is something else."
        ) from None
    return rows


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


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _response(result: Tensors | Exception) -> Any:
    if isinstance(result, Exception):
        code = pb_utils.TritonError.INTERNAL
        if isinstance(result, RequestError):
            code = pb_utils.TritonError.INVALID_ARG
        elif isinstance(result, TooLarge):
            code = pb_utils.TritonError.UNSUPPORTED  # a code that nothing else here is told by
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(result), code))
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, array) for name, array in result.items()]
    )
