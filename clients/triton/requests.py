"""Requests and responses of Triton's gRPC service: arrays to protobuf and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from clients.errors import TensorsRefused
from clients.triton.server import Hints, Tensors
from clients.triton.shared_memory import Layout

# Parameters of a request. The container's own backends read them
# (container/triton_backends/triton_requests.py); other backends ignore them.
#
# When the caller gives up, in microseconds since 1970. Triton itself drops requests from a dynamic
# batcher's queue when the call is cancelled, or by its own `timeout` if the model's queue policy
# says so; from no other queue.
DEADLINE = "deadline_us"
# The hints, as JSON by model, because an ensemble passes parameters on to its steps.
#
# Triton 2.51 finds an answer in its response cache by the model, its version and the bytes of the
# inputs: neither parameters nor the names of outputs count, nor do shapes. Errors are kept as
# answers without outputs. So a model with a cache is sent no parameters, and asked for all outputs.
ROWS = "rows"  # numbers by output
ABOVE = "rows_above"  # [column, number] by output
PADDING = "padding"  # {"inputs": number by input, "outputs": names}

datatype_of = lru_cache(maxsize=64)(np_to_triton_dtype)  # it tries one type after the other


def plain(hints: Hints) -> Hints:
    """Return hints with Python's own numbers: JSON has none of NumPy's."""
    return Hints(
        {name: [index(row) for row in rows] for name, rows in hints.rows.items()},
        {name: (index(column), float(least)) for name, (column, least) in hints.above.items()},
        hints.padding,
    )


def hint_parameters(model: str, hints: Hints) -> dict[str, str]:
    """Return the hints as parameters of a request."""
    parameters: dict[str, object] = {ROWS: hints.rows, ABOVE: hints.above}
    if padding := hints.padding:
        inputs = {name: index(number) for name, number in padding.inputs.items()}
        parameters[PADDING] = {"inputs": inputs, "outputs": list(padding.outputs)}
    return {name: json.dumps({model: value}) for name, value in parameters.items() if value}


def infer_request(  # noqa: PLR0913, PLR0917  the parts of a request
    model: str,
    version: str,
    inputs: Tensors,
    outputs: Sequence[str],
    parameters: Mapping[str, int | str],
    layout: Layout | None = None,
) -> Any:
    """Return a `ModelInferRequest`; inputs of the layout go into shared memory.

    Raises:
        TensorsRefused: Triton has no type for an array's dtype, or a text cannot be UTF-8.

    """
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for name, array in inputs.items():
        dtype = datatype_of(array.dtype)
        if dtype is None:
            raise TensorsRefused(
                f"input {name!r} is an array of {array.dtype}, for which Triton has no type"
            )
        tensor = request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        if layout and name in layout.inputs:
            layout.write(name, array)
            set_place(tensor, layout, array.nbytes, layout.inputs[name])
        else:
            request.raw_input_contents.append(
                text_bytes(name, array) if dtype == "BYTES" else array.tobytes()
            )
    for name in outputs:
        tensor = request.outputs.add(name=name)
        if layout and name in layout.outputs:
            offset, size = layout.outputs[name]
            set_place(tensor, layout, size, offset)
    for key, value in parameters.items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].int64_param = value
    return request


def set_place(tensor: Any, layout: Layout, size: int, offset: int) -> None:
    """Set the place in shared memory of an input, or of an expected output."""
    tensor.parameters["shared_memory_region"].string_param = layout.region_name
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def text_bytes(name: str, array: npt.NDArray[np.generic]) -> bytes:
    """Return an input of texts for Triton: for each its length, then its bytes.

    Raises:
        TensorsRefused: a text cannot be UTF-8.

    """
    try:
        texts = serialize_byte_tensor(array)
    except ValueError as error:
        raise TensorsRefused(f"input {name!r} cannot be sent: {error}") from error
    return bytes(texts.item()) if texts.size else b""


def array_of(answer: Any, number: int) -> npt.NDArray[np.generic]:
    """Return one output of a `ModelInferResponse`.

    Raises:
        ValueError: it has more or fewer bytes than its shape needs.

    """
    output = answer.outputs[number]
    raw = answer.raw_output_contents[number] if number < len(answer.raw_output_contents) else b""
    array: npt.NDArray[np.generic] = (
        deserialize_bytes_tensor(raw)
        if output.datatype == "BYTES"
        else np.frombuffer(raw, triton_to_np_dtype(output.datatype))
    )
    return array.reshape(output.shape)
