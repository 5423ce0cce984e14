"""Requests and responses of Triton's gRPC service: arrays to protobuf and back."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import index
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, triton_to_np_dtype

from clients.errors import (
    BadParameter,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelUnavailable,
    TensorsRefused,
)
from clients.request import SequencePart, Stream, trace_headers
from clients.tensors.elements import binary_data
from clients.triton.errors import stream_error
from clients.triton.server import Answer, Hints, Scalar, Signature, Tensors
from clients.triton.shared_memory import Arrays, Layout, Region

# Parameters of a request. The container's own backends read them
# (backends/triton_requests.py); other backends ignore them.
#
# When the caller gives up, in microseconds since 1970. Triton itself drops requests from a dynamic
# batcher's queue by its own `timeout` if the model's queue policy says so; from no other queue.
DEADLINE = "deadline_us"
# The hints, as JSON by model, because an ensemble passes parameters on to its steps.
#
# Triton 2.51 finds an answer in its response cache by the model, its version and the bytes of the
# inputs: neither parameters nor the names of outputs count, nor do shapes. Errors are kept as
# answers without outputs. So a model with a cache is sent no parameters, and asked for all outputs.
ROWS = "rows"  # numbers by output
ABOVE = "rows_above"  # [column, number] by output
PADDING = "padding"  # {"inputs": number by input, "outputs": names}
OWN = frozenset({DEADLINE, ROWS, ABOVE, PADDING})  # no caller sets them

# Triton 2.51 may end with SIGSEGV when a run is cancelled, as gRPC does at its time limit: one of
# an ensemble always, another one if it ends at that moment. Its response cache keeps the error of
# one that is cancelled in the queue. So that limit is later. The container's own backends leave out
# what has waited beyond its deadline; others run it, unless the model's queue policy has a timeout.
UNCANCELLED_S = 60.0
LOST: list[Any] = []  # stubs of channels whose end gRPC would wait for, for ever
MOST_LATE = 64  # runs of a model that go on after their limits, for each web worker

datatype_of = lru_cache(maxsize=64)(np_to_triton_dtype)  # it tries one type after the other


def hint_parameters(model: str, hints: Hints) -> dict[str, str]:
    """Return the hints as parameters of a request, with Python's numbers: JSON has no others."""
    parameters: dict[str, object] = {
        ROWS: {name: list(map(index, rows)) for name, rows in hints.rows.items()},
        ABOVE: {name: (index(at), float(least)) for name, (at, least) in hints.above.items()},
    }
    if padding := hints.padding:
        inputs = {name: index(number) for name, number in padding.inputs.items()}
        parameters[PADDING] = {"inputs": inputs, "outputs": list(padding.outputs)}
    return {name: json.dumps({model: value}) for name, value in parameters.items() if value}


def time_parameters(timeout: float) -> dict[str, int | str | bool]:
    """Return the parameters that say how long a request may take, in seconds."""
    return {
        DEADLINE: round((time.time() + timeout) * 1e6),
        "timeout": max(1, round(timeout * 1e6)),
    }


def callers_own(parameters: Mapping[str, Scalar] | None) -> dict[str, Scalar]:
    """Return what a caller may set of the parameters that it gave."""
    return {name: value for name, value in (parameters or {}).items() if name not in OWN}


def triton_identity(part: SequencePart, model: str, signature: Signature) -> int | str:
    """Return the id of a sequence in Triton, which keeps all callers' sequences in one table.

    Where keys are needed it is a hash of the caller's own id with the key's owner and the model, so
    that no caller can name another one's sequence.
    """
    kind = signature.correlation
    numeric = kind not in {"", "BYTES"}
    if not part.owner and (isinstance(part.identity, int) if numeric else not kind):
        return part.identity
    if kind.endswith("32"):
        raise BadParameter(
            f"the model {model!r} takes {kind} as a sequence's id: too short for a hash",
            hint="write TYPE_UINT64 for CONTROL_SEQUENCE_CORRID in config.pbtxt; without API keys "
            "a whole number in `sequence_id` works too",
        )
    digest = hashlib.sha512(json.dumps([part.owner, model, part.identity]).encode())
    if numeric:
        return int.from_bytes(digest.digest()[:8], "big") >> 1 or 1  # gRPC's numbers have a sign
    # 128 characters, Triton's maximum: shorter ones are filled up with zeros, which Triton 2.51
    # then refuses as further texts; those of 125 to 127 end the process of a Python model.
    return digest.hexdigest()


def sequence_parameters(
    part: SequencePart | None, model: str, signature: Signature
) -> dict[str, int | str | bool]:
    """Return the parameters of the next run of a sequence; note that the model was asked."""
    if not signature.sequence:
        return {}
    if part is None:
        raise BadParameter(
            f"the model {model!r} keeps state from one request of a sequence to the next, and no "
            "sequence is named",
            hint="send X-Amzn-SageMaker-Session-Id: NEW_SESSION, or "
            '"parameters": {"sequence_id": 7, "sequence_start": true}, with one payload',
        )
    parameters: dict[str, int | str | bool] = {
        "sequence_id": triton_identity(part, model, signature),
        "sequence_start": part.start and model not in part.asked,
        "sequence_end": part.end,
    }
    part.asked[model] = signature.idle_s
    return parameters


def infer_request(
    model: str,
    version: str,
    inputs: Tensors,
    outputs: Sequence[str],
    parameters: Mapping[str, Scalar],
    *,
    layout: Layout | None = None,
) -> Any:
    """Return a `ModelInferRequest`; what the layout has goes through its region."""
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    region = layout and layout.region
    for name, array in inputs.items():
        dtype = datatype_of(array.dtype)
        if dtype is None:
            raise TensorsRefused(
                f"input {name!r} is an array of {array.dtype}, for which Triton has no type"
            )
        tensor = request.inputs.add(name=name, datatype=dtype, shape=array.shape)
        if layout and region and name in layout.inputs:
            region.write(layout.inputs[name], array)
            set_place(tensor, region, array.nbytes, layout.inputs[name])
        else:
            request.raw_input_contents.append(bytes_of(name, array))
    for name in outputs:
        wanted = request.outputs.add(name=name)
        if layout and region and name in layout.outputs:
            place, size = layout.outputs[name]
            set_place(wanted, region, size, place)
    for key, value in parameters.items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        elif isinstance(value, bool):
            request.parameters[key].bool_param = value
        elif isinstance(value, float):
            request.parameters[key].double_param = value
        else:
            request.parameters[key].int64_param = value
    return request


def set_place(tensor: Any, region: Region, size: int, place: int) -> None:
    """Set the place in shared memory of an input, or of an expected output."""
    tensor.parameters["shared_memory_region"].string_param = region.name
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if place:
        tensor.parameters["shared_memory_offset"].int64_param = place


def bytes_of(name: str, array: npt.NDArray[np.generic]) -> bytes:
    """Return an input for Triton; of texts each has its length in front."""
    try:
        return binary_data(array) if array.dtype.kind in "OSU" else array.tobytes()
    except ValueError as error:
        raise TensorsRefused(f"input {name!r} cannot be sent: {error}") from error


def array_of(answer: Any, number: int) -> npt.NDArray[np.generic]:
    """Return one output of a `ModelInferResponse`.

    Raises ValueError: it has more or fewer bytes than its shape needs.
    """
    output = answer.outputs[number]
    raw = answer.raw_output_contents[number] if number < len(answer.raw_output_contents) else b""
    array: npt.NDArray[np.generic] = (
        deserialize_bytes_tensor(raw)
        if output.datatype == "BYTES"
        else np.frombuffer(raw, triton_to_np_dtype(output.datatype))
    )
    return array.reshape(output.shape)


def refuse_what_harms(
    model: str,
    inputs: Tensors,
    classes: Mapping[str, int],
    signature: Signature,
    *,
    stream: bool = False,
) -> None:
    """Raise TensorsRefused for requests that harm Triton 2.51; it does not refuse them itself."""
    if signature.decoupled and not stream:
        raise TensorsRefused(
            f"the model {model!r} is decoupled: it gives any number of answers to one request",
            hint="a class asks it by self.stream()",
        )
    batches = signature.max_batch_size or signature.ensemble  # whose steps may
    for name, array in inputs.items():
        if batches and array.ndim and not len(array):  # it never answers
            raise TensorsRefused(
                f"input `{name}` has shape {list(array.shape)}, a batch of no items",
                hint="expected one item at least along the first axis",
            )
    for spec in signature.outputs:
        if spec.name in classes and spec.datatype in {"BYTES", "BOOL"}:  # it ends with SIGFPE
            raise TensorsRefused(
                f"classes are wanted of the output `{spec.name}`, which is {spec.datatype}",
                hint="expected an output of numbers; leave `classification` out for this one",
            )


def as_answer(arrays: Iterable[tuple[str, npt.NDArray[Any]]], response: Any) -> Answer:
    """Return the arrays of a `ModelInferResponse` with what else it says."""
    answer = Answer(arrays)
    answer.version = response.model_version
    answer.parameters = {
        name: getattr(value, choice)
        for name, value in response.parameters.items()
        if name != "triton_final_response"  # Triton's own, of a stream
        and (choice := value.WhichOneof("parameter_choice"))
    }
    return answer


def in_order(arrays: Arrays, wanted: Sequence[str], signature: Signature) -> Arrays:
    """Return outputs in the order of the request, else of the configuration.

    A model process answers in the order in which Triton passes it their names, which differs from
    process to process.
    """
    known = wanted or [*(spec.name for spec in signature.outputs), *sorted(arrays)]
    ordered = Answer((name, arrays[name]) for name in known if name in arrays)
    ordered.version = getattr(arrays, "version", "")
    ordered.parameters = getattr(arrays, "parameters", {})
    return ordered


class Runs:
    """Runs models; a run whose time is over is not cancelled."""

    def __init__(self, stub: Any, metadata: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self.is_broken = False
        """Whether its channel has to be replaced: gRPC does not look for answers on it any more."""
        self._stub = stub
        self._metadata = metadata
        self._late: Counter[str] = Counter()  # a channel may serve several models
        self._lock = threading.Lock()

    def infer(self, request: Any, timeout: float) -> Any:
        """Run a model; return Triton's answer.

        Raises:
            grpc.RpcError: Triton has refused it.
            DeadlineExceeded: the time is over.
            ValueError: the channel is closed.
            ModelUnavailable: there is no room for the thread in which gRPC waits for answers.

        """
        ended = threading.Event()  # gRPC's own wait follows the wall clock, which may jump
        error: Exception | None = None
        try:
            call = self._stub.ModelInfer.future(
                request,
                timeout=timeout + UNCANCELLED_S,
                metadata=(*self._metadata(), *trace_headers()),
            )
            call.add_done_callback(lambda _: ended.set())
            if not ended.wait(max(0.0, timeout)):
                with self._lock:
                    self._late[request.model_name] += 1
                call.add_done_callback(partial(self._note_end, request.model_name))
                raise DeadlineExceeded("")  # which goes on
            error = call.exception()
            if error is None:
                return call.result()
            raise error
        except RuntimeError as reason:
            self.is_broken = True
            LOST.append(self._stub)
            raise ModelUnavailable(
                f"a request to Triton could not be sent: {reason}", hint="ask again later"
            ) from reason
        finally:
            # The error is the call, and holds this frame: until a garbage collection both would
            # hold the tensors.
            call = error = None

    def refuse_if_many_are_late(self, model: str) -> None:
        """Raise ModelBusy where many runs go on after their time limits."""
        if self._late[model] >= MOST_LATE:
            raise ModelBusy(
                f"{MOST_LATE} runs of the model {model!r} go on after their time limits",
                hint="ask again later, and with a longer time limit",
            )

    def _note_end(self, model: str, _: object) -> None:
        with self._lock:
            self._late[model] -= 1


class TritonStream(Stream[Arrays]):
    """The answers of one run."""

    def __init__(
        self,
        call: Any,
        signature: Signature,
        explained: Callable[[grpc.RpcError | ValueError | InferenceError], InferenceError],
        answered: Callable[[], None],
    ) -> None:
        self._call, self._signature = call, signature
        self._explained, self._answered = explained, answered
        self._cancelled = False

    def __next__(self) -> Arrays:
        try:
            came = next(self._call)
            if came.error_message:
                raise stream_error(came.error_message)
            answer = came.infer_response
            arrays = as_answer(
                ((one.name, array_of(answer, at)) for at, one in enumerate(answer.outputs)), answer
            )
        except (grpc.RpcError, ValueError, InferenceError) as error:
            if self._cancelled:
                raise DeadlineExceeded(
                    "the model's next answer did not come in time", hint="ask for less at once"
                ) from error
            raise self._explained(error) from error
        self._answered()
        return in_order(arrays, (), self._signature)

    def close(self) -> None:
        self._cancelled = True
        self._call.cancel()
