"""From Triton's request objects to arrays and back; imported only inside Triton's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from container.backends.batching import Item, RequestError, run_items

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from container.backends.batching import Run, Tensors


def answer(
    requests: Sequence[Any],
    prepare: Callable[[Tensors], Tensors],
    run: Run,
    *,
    outputs: Sequence[str],
    max_batch_size: int,
) -> list[Any]:
    """Return one response per request, in order.

    `prepare` turns a request's tensors into what the model takes and raises RequestError for a
    request that does not fit, which then fails alone. `outputs` are the configured names, for
    a request that names none.
    """
    responses: list[Any] = [None] * len(requests)
    items: dict[int, Item] = {}
    for index, request in enumerate(requests):
        try:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            wanted = tuple(request.requested_output_names()) or tuple(outputs)
            items[index] = Item(prepare(tensors), wanted)
        except Exception as error:
            responses[index] = _response(error)
    results = run_items(list(items.values()), run, max_batch_size=max_batch_size)
    for index, result in zip(items, results, strict=True):
        try:
            responses[index] = _response(result)
        except Exception as error:
            responses[index] = _response(error)
    return responses


def log_warnings(model_name: str, warnings: Sequence[str]) -> None:
    """Write each sentence to Triton's log, with the model's name before it."""
    for warning in warnings:
        pb_utils.Logger.log_warn(f"model '{model_name}': {warning}")


def _response(result: Tensors | Exception) -> Any:
    if isinstance(result, Exception):
        code = (
            pb_utils.TritonError.INVALID_ARG
            if isinstance(result, RequestError)
            else pb_utils.TritonError.INTERNAL
        )
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(result), code))
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, array) for name, array in result.items()]
    )
