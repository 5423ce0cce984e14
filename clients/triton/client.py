"""Triton over gRPC. The one file that imports `tritonclient`.

Models are asked through the generated stub of `tritonclient`; all else goes through its client. The
channels of both are made in each process after the fork (gRPC does not survive one), and are shared
by all threads: they are thread-safe except for streams.
"""

from __future__ import annotations

import difflib
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf import json_format, text_format
from tritonclient import grpc as triton
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
)
from clients.repository.config_text import NotReadable, no_number, read
from clients.tensors.classes import classified, labels_at
from clients.tensors.client import zeros
from clients.triton.regions import Region, Regions, free_bytes
from clients.triton.server import (
    Above,
    ModelServer,
    ModelState,
    Padding,
    Rows,
    Signature,
    Tensors,
    TensorSpec,
    is_filtered,
    is_picked,
)
from clients.triton.shared_tensors import Arrays, Layout, large, layout_of

BACKENDS = ("onnxruntime", "pytorch")
"""Those that the container has of its own (container/triton_backends)."""

# Triton's errors are told apart by their gRPC status alone, never by their text, but for `MISFIT`.
TRANSLATION: Mapping[grpc.StatusCode, type[InferenceError]] = {
    grpc.StatusCode.OK: ModelFailed,
    grpc.StatusCode.CANCELLED: ModelFailed,
    grpc.StatusCode.UNKNOWN: ModelFailed,
    grpc.StatusCode.INVALID_ARGUMENT: TensorsRefused,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: UnknownModel,
    grpc.StatusCode.ALREADY_EXISTS: ModelFailed,
    grpc.StatusCode.PERMISSION_DENIED: ModelFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ModelUnavailable,
    grpc.StatusCode.FAILED_PRECONDITION: ModelFailed,
    grpc.StatusCode.ABORTED: ModelFailed,
    grpc.StatusCode.OUT_OF_RANGE: TensorsRefused,
    # So this project's backends refuse what does not fit into shared memory.
    grpc.StatusCode.UNIMPLEMENTED: TooLargeAtOnce,
    grpc.StatusCode.INTERNAL: ModelFailed,
    grpc.StatusCode.UNAVAILABLE: ModelUnavailable,
    grpc.StatusCode.DATA_LOSS: ModelFailed,
    grpc.StatusCode.UNAUTHENTICATED: ModelFailed,
}


# How Triton says that a step of an ensemble does not take what the steps before it gave. It has one
# status for that and for what may be the caller's doing, such as a shape that a step does not take.
MISFIT = re.compile(
    r"in ensemble '.*(inference input '.*' data-type is '\w+', but model '.*' expects '\w+'"
    r"|(expected \d+ inputs but got \d+ inputs for model '))"
)
# What protobuf's parser says of names in a `config.pbtxt` that it does not know.
NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
NO_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')

NO_ID = "[request id: <id_unknown>] "

datatype_of = lru_cache(maxsize=64)(np_to_triton_dtype)  # it tries one type after the other


def translated(error: InferenceServerException) -> InferenceError:
    """Return the contract's error for one of Triton's."""
    # tritonclient writes the code as "StatusCode.NOT_FOUND", and nothing for its own complaints
    # about arrays, which it makes before anything is sent.
    name = str(error.status() or "StatusCode.INVALID_ARGUMENT").removeprefix("StatusCode.")
    kind = TRANSLATION.get(getattr(grpc.StatusCode, name, grpc.StatusCode.UNKNOWN), ModelFailed)
    return kind(first_line(error.message()))


def told(
    error: InferenceServerException | ValueError, signature: Signature, inputs: Collection[str]
) -> InferenceError:
    """Return the contract's error for one of a model that was asked with some inputs."""
    if isinstance(error, ValueError):  # what came is not of the shape that it says
        return ModelFailed(f"the model's answer cannot be read: {error}")
    known = translated(error)
    if isinstance(known, TooLargeAtOnce) and not (
        signature.ensemble or signature.backend in BACKENDS
    ):
        return ModelFailed(known.message)
    if isinstance(known, TensorsRefused) and (misfit := MISFIT.match(known.message)):
        all_given = all(spec.name in inputs for spec in signature.inputs)
        if all_given or not misfit[2]:  # else a step may miss what the caller has left out
            return ModelFailed(known.message)
    return known


def first_line(text: object) -> str:
    """Return what went wrong without the traceback that a Python backend adds below it.

    Nor with the request's id, which Triton was not given.
    """
    return str(text or "").partition("\n")[0].strip().replace(NO_ID, "")


# gRPC waits longer and longer, up to two minutes, before it tries again to reach a server that was
# not there: too long for one that is starting or was restarted beside us.
CHANNEL = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # tritonclient's own, which it leaves out as soon as it is given any: tensors have no limit.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # It is on this machine: a proxy, of which Docker tells every container, knows it not.
    ("grpc.enable_http_proxy", 0),
    # An error's text comes as metadata, of which gRPC takes 16 kB: a model that says more than
    # that seemed to be unreachable.
    ("grpc.max_metadata_size", 2**20),
    ("grpc.absolute_max_metadata_size", 2**24),
)


# When the caller gives up, in microseconds since 1970: this project's backends do not run what
# nobody waits for. Triton itself takes such requests out of a dynamic batcher's queue when the call
# is cancelled, and by its own `timeout` where the model's queue policy says so; out of no other.
DEADLINE = "deadline_us"
LONG_AGO = 1

# The rows that are wanted of some outputs, as JSON: numbers by output, by model, for an ensemble
# hands parameters on to its steps. This project's backends answer no others, in the shape that
# `clients.triton.server.picked` returns; all others answer the whole output.
ROWS = "rows"
# Likewise, for rows that have more than a number in some column: [column, number] by output, by
# model. Triton's response cache does not look at parameters, and must stay off.
ABOVE = "rows_above"
# How inputs may be made longer or shorter, likewise: {"inputs": numbers by input, "outputs":
# names}, by model.
PADDING = "padding"

SIGNATURE_S = 2.0  # how long a model's configuration is believed: it may be loaded anew
UNLOAD_LOOK_S = 0.02
# With these Triton has done with a request; others may be of the connection alone.
ENDED = frozenset(
    f"StatusCode.{code}"
    for code in (
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "INTERNAL",
        "UNIMPLEMENTED",
        "FAILED_PRECONDITION",
    )
)

# Triton 2.51 ends with SIGSEGV where a call of an ensemble is cancelled, which is what gRPC does at
# its time limit. So that is not reached: steps end by the deadline that they are told. Meanwhile
# the caller is answered in the place of the thread that waits (dispatcher/execution/watchdog.py).
ENSEMBLE_S = 60.0

# It keeps no word on a configuration that it refuses.
CHECK_SAYS_MORE = "`dispatcher check` on the model's folder may say more"
LOG_SAYS_WHY = "Triton's log has the reason; `dispatcher check` finds many of them beforehand"

RELOADED = "dispatcher_reloaded"  # a parameter that no backend knows
UNLOADED = "unloaded"  # Triton's reason for a model that somebody has unloaded
TO_MEND = " To mend it: "  # before what helps, in the words of this project's backends

NO_ROOM = "No space left on device"  # for a model's region in /dev/shm
ROOM_S = 10.0  # how long a model that was loaded waits for it
FITS = 2**19  # bytes of inputs for which there is always room

REGION_S = 2.0  # for telling Triton of shared memory
MOST_CALLS = 1000  # of which it is remembered how large their answers are
BUSY = frozenset({"READY", "UNLOADING"})
LISTINGS = 5  # tries for one


@dataclass(frozen=True)
class Call:
    """What is asked of Triton, but for the tensors.

    Args:
        model: its name.
        version: of the model; the empty text means the latest.
        outputs: the names of those that are wanted; none means all.
        specs: the model's outputs at present, where it may matter.
        picked: how many rows are wanted of an output; 0 where a number of their own tells.
        rows: which they are. Calls are the same to each other whichever they are.
        above: what that number has to be; likewise.
        padding: what may be done with the inputs, as `PADDING` has it; likewise.
        patience: seconds beyond its deadline that the answer is waited for.

    """

    model: str
    version: str
    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    picked: tuple[tuple[str, int], ...]
    rows: Rows = field(compare=False)
    above: Above = field(compare=False)
    padding: Mapping[str, object] | None = field(compare=False)
    patience: float = field(default=0.0, compare=False)


class Line:
    """What a model is asked through: a channel of its own, over the connection that all share.

    Args:
        address: of Triton ("host:port").

    """

    def __init__(self, address: str) -> None:
        self.abandoned = ""
        """Why what waited there was ended, if it was."""
        self._channel = grpc.insecure_channel(address, CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ask(self, request: Any, timeout: float) -> Any:
        """Return Triton's answer to a `ModelInferRequest`, a `ModelInferResponse`.

        Args:
            request: what is asked.
            timeout: seconds until the answer has to be there; Triton gets them as well.

        Raises:
            InferenceServerException: it refused, or did not answer.
            ValueError: this was abandoned before.

        """
        try:
            return self._stub.ModelInfer(request, timeout=timeout)
        except grpc.RpcError as error:
            raise InferenceServerException(error.details(), status=str(error.code())) from error

    def abandon(self, reason: str) -> None:
        """Let all that was asked, and is not answered, fail; and all that is asked from now on."""
        self.abandoned = reason
        self._channel.close()


class Triton(ModelServer):
    """A Triton on this machine.

    Large tensors go through shared memory where there is room for them; see
    `clients.triton.regions`.

    Args:
        address: where it listens for gRPC ("host:port").
        shared_bytes: how much shared memory may be used.
        repository: its models, where their labels are read.
        scarce: whether this project's backends give each model no more than a part of what shared
            memory there is.

    """

    def __init__(
        self,
        address: str,
        shared_bytes: int = 0,
        repository: Path | None = None,
        *,
        scarce: bool = False,
    ) -> None:
        self._scarce = scarce
        self._repository = repository
        self._client = triton.InferenceServerClient(address, channel_args=list(CHANNEL))
        self._address = address
        self._first = Line(address)
        self._lines: dict[str, Line] = {}
        self._server = RegionServer(self._client)
        self._regions = Regions(self._server, shared_bytes)
        self._sizes: dict[Call, Mapping[str, tuple[int, int]]] = {}
        self._signatures: dict[tuple[str, str], tuple[float, Signature]] = {}
        self._failing: set[str] = set()

    def infer(  # noqa: PLR0913  as in the seam
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        rows: Rows | None = None,
        above: Above | None = None,
        padding: Padding | None = None,
        version: str = "",
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        classes = classes or {}
        # Numbers of numpy's kinds are no JSON.
        rows = {name: [index(row) for row in some] for name, some in (rows or {}).items()}
        above = {name: (index(column), float(n)) for name, (column, n) in (above or {}).items()}
        deadline = time.monotonic() + timeout
        if classes:  # of the model as it is now, which may be another than two seconds ago
            self._signatures.pop((model, version), None)
        signature = self.signature(model, version, timeout=timeout)
        refuse_what_harms(model, inputs, classes, signature)
        specs: tuple[TensorSpec, ...] = ()
        if self._regions.limit and not (outputs or classes):
            specs = signature.outputs
        call = Call(
            model,
            version,
            tuple(outputs or classes),
            specs,
            (*((name, len(some)) for name, some in rows.items()), *((name, 0) for name in above)),
            rows,
            above,
            written(padding) if padding else None,
            patience=ENSEMBLE_S if signature.ensemble else 0.0,
        )
        line = self._lines.get(model, self._first)
        try:
            arrays = self._through_memory(line, call, inputs, deadline)
            if arrays is None:
                arrays = self._ask(line, call, inputs, None, deadline)
        except (InferenceServerException, ValueError) as error:
            if line.abandoned:
                raise ModelFailed(line.abandoned) from error
            late = time.monotonic() > deadline
            raise self._noted(
                model,
                self._explained(told(error, signature, inputs), model, version, timeout, late=late),
            ) from error
        wanted = {*outputs, *classes}
        missing = missing_output(arrays, wanted, signature)
        if missing and not wanted:  # it may have been loaded anew since
            self._signatures.pop((model, version), None)
            left = max(0.0, deadline - time.monotonic())
            signature = self.signature(model, version, timeout=left)
            missing = missing_output(arrays, wanted, signature)
        if missing:
            raise self._noted(model, ModelFailed(f"the model {model!r} answered {missing}"))
        self._failing.discard(model)
        if line is self._first:  # not for whatever name a caller thinks of
            self._lines.setdefault(model, Line(self._address))
        for name, count in classes.items():
            labels = self._labels(model, version, name, deadline - time.monotonic())
            batched = signature.max_batch_size > 0
            arrays[name] = classified(arrays[name], count, labels, batched=batched)
        return in_order(arrays, (*outputs, *classes), signature)

    def _labels(self, model: str, version: str, output: str, timeout: float) -> Sequence[bytes]:
        """Return the labels of an output; of an ensemble those of the step that it is from."""
        if not self._repository:
            return ()
        config = self._config(model, version, timeout)
        for one in config.output:
            if one.name == output and one.label_filename:
                return labels_at(self._repository / model / one.label_filename)
        for step in config.ensemble_scheduling.step:
            for inner, outer in step.output_map.items():
                if outer == output:
                    wanted = str(step.model_version) if step.model_version > 0 else ""
                    return self._labels(step.model_name, wanted, inner, timeout)
        return ()

    def _config(self, model: str, version: str, timeout: float) -> model_config_pb2.ModelConfig:
        try:
            return self._client.get_model_config(model, version, client_timeout=timeout).config
        except InferenceServerException as error:
            raise self._explained(translated(error), model, version, timeout) from error

    def _noted(self, model: str, error: InferenceError) -> InferenceError:
        """Take note of a model that fails, and return why."""
        if isinstance(error, ModelFailed | DeadlineExceeded):
            self._failing.add(model)
        return error

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        line = self._lines.get(model, self._first)
        try:
            line.ask(request_of(model, "", inputs, (), {DEADLINE: LONG_AGO}), timeout)
        except (InferenceServerException, ValueError) as error:
            if line.abandoned:
                raise ModelFailed(line.abandoned) from error
            if isinstance(error, ValueError):
                raise
            if not isinstance(translated(error), TensorsRefused):
                raise self._explained(translated(error), model, "", timeout) from error

    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        self._failing.add(model)
        line = self._lines.pop(model, None)
        if line and within:
            ending = threading.Timer(within, line.abandon, (reason,))
            ending.daemon = True
            ending.start()
        elif line:
            line.abandon(reason)

    def _through_memory(
        self, line: Line, call: Call, inputs: Tensors, deadline: float
    ) -> Arrays | None:
        """Ask with the large tensors in shared memory; `None` where that is not to be."""
        layout = layout_of(inputs, self._sizes.get(call, {}))
        region = self._regions.take(layout.size) if layout.size else None
        if region is None:
            return None
        idle, known = False, True
        try:
            try:
                arrays = self._ask(line, call, inputs, replace(layout, region=region), deadline)
            except (TensorsRefused, ValueError):  # before it was sent, or after it came back
                idle = True
                if not layout.outputs:
                    raise
            except InferenceServerException as error:
                idle = error.status() in ENDED
                if not idle or isinstance(translated(error), TooLargeAtOnce):
                    raise
                known = self._knows(region)
                if known and not layout.outputs:
                    raise
            else:
                idle = True
                return arrays
            # It was Triton, anew and without the region, or an answer other than was foreseen.
            arrays = self._ask(line, call, inputs, None, deadline)
            if known:
                self._sizes[call] = {}
            return arrays
        finally:
            if known:
                self._regions.give_back(region, idle=idle)
            else:
                self._regions.drop(region)

    def _knows(self, region: Region) -> bool:
        try:
            return region.name in self._server.registered()
        except InferenceError:
            return True  # another call will find out

    def _ask(
        self, line: Line, call: Call, inputs: Tensors, layout: Layout | None, deadline: float
    ) -> Arrays:
        timeout = deadline - time.monotonic()
        names = call.outputs
        parameters: dict[str, int | str] = {
            DEADLINE: round((time.time() + timeout) * 1e6),
            "timeout": max(1, round(timeout * 1e6)),
        }
        if call.rows:
            parameters[ROWS] = json.dumps({call.model: call.rows})
        if call.above:
            parameters[ABOVE] = json.dumps({call.model: call.above})
        if call.padding:
            parameters[PADDING] = json.dumps({call.model: call.padding})
        if layout and layout.outputs:  # then each has to be named
            names = names or tuple(spec.name for spec in call.specs)
        request = request_of(call.model, call.version, inputs, names, parameters, layout)
        answer = line.ask(request, timeout + call.patience)
        arrays = {
            output.name: layout.read(output.name, triton_to_np_dtype(output.datatype), output.shape)
            if layout and output.name in layout.outputs
            else array_of(answer, number)
            for number, output in enumerate(answer.outputs)
        }
        if call not in self._sizes and self._regions.limit:
            if len(self._sizes) >= MOST_CALLS:
                self._sizes.clear()
            sent = sum(array.nbytes for array in inputs.values())
            self._sizes[call] = {
                name: (
                    # How much is left out is another matter with every picture.
                    0 if is_filtered(array, call.above.get(name)) else large(array),
                    0 if is_picked(array, call.rows.get(name)) else sent,
                )
                for name, array in arrays.items()
            }
        return arrays

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        now = time.monotonic()
        read_at, known = self._signatures.get((model, version), (0.0, None))
        if known is None or now > read_at + SIGNATURE_S:
            config = self._config(model, version, timeout)
            known = signature_of(config)
            if known.ensemble and known.max_batch_size > 1:
                steps = (step.model_name for step in config.ensemble_scheduling.step)
                shares = all(self.signature(one, timeout=timeout).shares_runs for one in steps)
                known = replace(known, shares_runs=shares)
            self._signatures[model, version] = (now, known)
        return known

    def instances(self, model: str, *, timeout: float) -> int:
        try:
            config = self._client.get_model_config(model, client_timeout=timeout).config
        except InferenceServerException as error:
            raise translated(error) from error
        return sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)

    def answered(self, model: str, *, timeout: float) -> int:
        try:
            versions = self._client.get_inference_statistics(
                model, client_timeout=timeout
            ).model_stats
        except InferenceServerException as error:
            raise translated(error) from error
        return sum(version.inference_stats.success.count for version in versions)

    def take_failing(self) -> set[str]:
        failing = set(self._failing)
        self._failing -= failing
        return failing

    def is_ready(self, *, timeout: float) -> bool:
        try:
            return bool(self._client.is_server_ready(client_timeout=timeout))
        except InferenceServerException:
            return False

    def tidy(self) -> None:
        self._regions.tidy()

    def models(self, *, timeout: float) -> list[ModelState]:
        # Triton lists none where a folder goes that it has just read the name of.
        for left in reversed(range(LISTINGS)):
            try:
                index = self._client.get_model_repository_index(client_timeout=timeout).models
                break
            except InferenceServerException as error:
                known = translated(error)
                if not (left and isinstance(known, ModelFailed)):
                    raise known from error
        # Triton promises no order.
        index = sorted(index, key=lambda m: (m.name, len(m.version), m.version))
        return [ModelState(m.name, m.version, m.state, first_line(m.reason)) for m in index]

    def load(self, model: str, *, timeout: float) -> None:
        try:
            self._client.load_model(model, client_timeout=timeout)
        except InferenceServerException as error:
            if isinstance(translated(error), DeadlineExceeded):
                raise DeadlineExceeded(
                    f"the model {model!r} was not loaded within {timeout:g} s; Triton goes on",
                    hint=f"GET /models/{model} says when it is there; then POST /reload",
                ) from error
            reasons = [s.reason for s in self.models(timeout=timeout) if s.name == model]
            known = next(filter(None, reasons), "")
            reason, _, fix = (known or translated(error).message).partition(TO_MEND)
            # Triton has one code for all reasons.
            kind = TooLargeAtOnce if NO_ROOM in reason else ModelFailed
            hint = fix or (CHECK_SAYS_MORE if known else LOG_SAYS_WHY)
            raise kind(reason, hint=hint) from error
        if self._scarce:
            self._let_take_room(model)

    def _let_take_room(self, model: str) -> None:
        """Let a model take the shared memory that it needs.

        One of this project's backends does so with the first request, which has to have room
        itself: what has none Triton never lets go of.

        Raises:
            TooLargeAtOnce: there is too little; the model is unloaded again.

        """
        self._signatures.pop((model, ""), None)
        try:
            signature = self.signature(model, timeout=ROOM_S)
            if signature.backend not in BACKENDS or signature.decoupled or signature.sequence:
                return
            inputs = zeros(signature)
            await_room(sum(array.nbytes for array in inputs.values()))
            self.knock(model, inputs, timeout=2 * ROOM_S)
        except TooLargeAtOnce:
            with suppress(InferenceError):  # late, perhaps: that it has no room is what counts
                self.unload(model, timeout=ROOM_S)
            raise
        except InferenceError:
            pass  # it is there: who asks it finds out what is wrong

    def reload(self, model: str, *, timeout: float) -> None:
        try:
            answer = self._client.get_model_config(model, as_json=True, client_timeout=timeout)
            config = {"max_batch_size": 0, **answer["config"]}  # which JSON leaves out
            if config.get("backend") != "python":  # this project's add it, and refuse it
                for tensor in config.get("input", ()):
                    tensor.pop("allow_ragged_batch", None)
            # Triton loads a model again only where its configuration has changed.
            changed = {RELOADED: {"string_value": str(time.time_ns())}}
            config["parameters"] = config.get("parameters", {}) | changed
            self._client.load_model(model, config=json.dumps(config), client_timeout=timeout)
        except InferenceServerException as error:
            raise translated(error) from error

    def unload(self, model: str, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._client.unload_model(model, client_timeout=timeout)
        except InferenceServerException as error:
            known = translated(error)
            if isinstance(known, DeadlineExceeded):
                raise still_in_use(model, timeout) from error
            raise self._explained(known, model, "", timeout) from error
        # Triton answers before the model's requests and processes have ended.
        while any(s.state in BUSY for s in self.models(timeout=timeout) if s.name == model):
            if time.monotonic() > deadline:
                raise still_in_use(model, timeout)
            time.sleep(UNLOAD_LOOK_S)

    def _explained(  # noqa: PLR0911  one for each thing that it may have been
        self,
        error: InferenceError,
        model: str,
        version: str,
        timeout: float,
        *,
        late: bool = False,
    ) -> InferenceError:
        """Say which of model, version and readiness it was: Triton's status leaves that open.

        `late` is whether the time was over: this project's backends refuse a request then.
        """
        if isinstance(error, DeadlineExceeded) or (late and isinstance(error, TensorsRefused)):
            return too_late(model, timeout)
        if not isinstance(error, UnknownModel | ModelUnavailable):
            return error
        try:
            states = [state for state in self.models(timeout=timeout) if state.name == model]
        except DeadlineExceeded:  # it did not refuse to answer: the rest of a millisecond was over
            return too_late(model, timeout)
        except InferenceError:
            return ModelUnavailable(
                "Triton does not answer", hint="it may be starting: try again in a few seconds"
            )
        ready = [state.version for state in states if state.ready]
        if not states:
            return UnknownModel(f"there is no model {model!r} in the model repository")
        if not ready:
            reasons = {state.why for state in states if state.why}
            why, _, fix = "".join(f": {r}" for r in sorted(reasons)).partition(TO_MEND)
            if reasons == {UNLOADED}:
                fix = f"POST /load_model/{model} loads it"
            return ModelUnavailable(
                f"the model {model!r} is not ready{why}",
                hint=fix or "see the log of the start; /ping says which models are missing",
            )
        if version and version not in ready:
            return UnknownVersion(
                f"the model {model!r} has no version {version!r}",
                hint=f"versions that are served: {', '.join(ready)}",
            )
        if isinstance(error, UnknownModel):  # the model's own word, for it was asked
            return ModelFailed(error.message)
        return ModelBusy(
            f"the model {model!r} does not take this now: {error.message}",
            hint="try again after Retry-After seconds",
        )


@dataclass(frozen=True)
class RegionServer:
    """What Triton has to be told of regions."""

    client: triton.InferenceServerClient

    def register(self, name: str, size: int) -> None:
        self._tell(self.client.register_system_shared_memory, name, f"/{name}", size)

    def unregister(self, name: str) -> None:
        self._tell(self.client.unregister_system_shared_memory, name)

    def registered(self) -> list[str]:
        return list(self._tell(self.client.get_system_shared_memory_status).regions)

    @staticmethod
    def _tell(method: Callable[..., Any], *arguments: object) -> Any:
        try:
            return method(*arguments, client_timeout=REGION_S)
        except InferenceServerException as error:
            raise translated(error) from error


def request_of(  # noqa: PLR0913, PLR0917  all that a request says
    model: str,
    version: str,
    inputs: Tensors,
    outputs: Sequence[str],
    parameters: Mapping[str, int | str],
    layout: Layout | None = None,
) -> Any:
    """Return a `ModelInferRequest`, whose inputs lie where the layout has them.

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
            lies_at(tensor, layout, array.nbytes, layout.inputs[name])
        else:
            request.raw_input_contents.append(
                texts_content(name, array) if dtype == "BYTES" else array.tobytes()
            )
    for name in outputs:
        tensor = request.outputs.add(name=name)
        if layout and name in layout.outputs:
            offset, size = layout.outputs[name]
            lies_at(tensor, layout, size, offset)
    for key, value in parameters.items():
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].int64_param = value
    return request


def lies_at(tensor: Any, layout: Layout, size: int, offset: int) -> None:
    """Say where in shared memory a tensor of a request is, or is to be."""
    tensor.parameters["shared_memory_region"].string_param = layout.region_name
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        tensor.parameters["shared_memory_offset"].int64_param = offset


def texts_content(name: str, array: npt.NDArray[np.generic]) -> bytes:
    """Return an input of texts as Triton takes it, each with its length before it.

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
        ValueError: there are more bytes than its shape says, or fewer.

    """
    output = answer.outputs[number]
    raw = answer.raw_output_contents[number] if number < len(answer.raw_output_contents) else b""
    array: npt.NDArray[np.generic] = (
        deserialize_bytes_tensor(raw)
        if output.datatype == "BYTES"
        else np.frombuffer(raw, triton_to_np_dtype(output.datatype))
    )
    return array.reshape(output.shape)


def written(padding: Padding) -> dict[str, object]:
    """Return what `PADDING` says for a model."""
    numbers = {name: index(number) for name, number in padding.inputs.items()}
    return {"inputs": numbers, "outputs": list(padding.outputs)}


def signature_of(config: model_config_pb2.ModelConfig) -> Signature:
    """Return what a model takes and gives, from Triton's configuration of it."""
    batch = (-1,) if config.max_batch_size else ()
    sides = (config.input, config.output)
    inputs, outputs = (
        tuple(
            TensorSpec(
                one.name,
                DATATYPES[model_config_pb2.DataType.Name(one.data_type)],
                (*batch, *one.dims),
                optional=getattr(one, "optional", False),
            )
            for one in side
        )
        for side in sides
    )
    decoupled = config.model_transaction_policy.decoupled
    ensemble = config.HasField("ensemble_scheduling")
    sequence = config.HasField("sequence_batching")
    return Signature(
        config.max_batch_size,
        inputs,
        outputs,
        decoupled,
        ensemble,
        sequence,
        config.backend,
        shares_runs=config.max_batch_size > 1 and config.HasField("dynamic_batching"),
    )


def await_room(size: int) -> None:
    """Wait until inputs of so many bytes have room in shared memory.

    A model of the same name may be on its way out.

    Raises:
        TooLargeAtOnce: there is none in `ROOM_S`.

    """
    until = time.monotonic() + ROOM_S
    while size > FITS and free_bytes() < size:
        if time.monotonic() > until:
            raise TooLargeAtOnce("there is no room for its inputs in /dev/shm")
        time.sleep(UNLOAD_LOOK_S)


def too_late(model: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the model {model!r} did not answer within {timeout:.3f} s, what was left of the "
        "time for this request",
        hint="send fewer or smaller items in one request",
    )


def still_in_use(model: str, timeout: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the model {model!r} was not unloaded within {timeout:.3g} s, for it is still in use; "
        "Triton goes on",
        hint=f"GET /models/{model} is 404 when it is gone; one that never answers a request is "
        "gone when Triton is started anew",
    )


def in_order(arrays: Arrays, wanted: Sequence[str], signature: Signature) -> Arrays:
    """Return outputs in the order in which they were asked for, else in that of the configuration.

    A model's process answers in the order in which Triton hands it their names, which is another
    in each process.
    """
    known = wanted or [*(spec.name for spec in signature.outputs), *sorted(arrays)]
    return {name: arrays[name] for name in known if name in arrays}


def missing_output(arrays: Arrays, wanted: Collection[str], signature: Signature) -> str:
    """Return which output a model did not give, as those of the Python backend may; else nothing.

    Where none is named any that it says it has will do: it may have some that depend on inputs.
    """
    has = [spec.name for spec in signature.outputs]
    missing = sorted(name for name in wanted if name not in arrays)
    if not missing and (wanted or not has or not arrays.keys().isdisjoint(has)):
        return ""
    gave = ", ".join(map(repr, arrays)) or "none"
    return f"without its output {', '.join(map(repr, missing or has))}; it gave {gave}"


def refuse_what_harms(
    model: str, inputs: Tensors, classes: Mapping[str, int], signature: Signature
) -> None:
    """Raise TensorsRefused for what Triton 2.51 does not refuse itself, or not in time.

    It never answers some batches of no items.
    """
    if signature.decoupled:
        raise TensorsRefused(
            f"the model {model!r} is decoupled: it gives any number of answers to one request",
            hint="expected a model with one answer, without `model_transaction_policy`",
        )
    if signature.sequence:
        raise TensorsRefused(
            f"the model {model!r} keeps state from one request of a sequence to the next",
            hint="expected a model that answers each by itself, without `sequence_batching`",
        )
    batches = signature.max_batch_size or signature.ensemble  # whose steps may
    for name, array in inputs.items():
        if batches and array.ndim and not len(array):
            raise TensorsRefused(
                f"input `{name}` has shape {list(array.shape)}, a batch of no items",
                hint="expected one item at least along the first axis",
            )
    for spec in signature.outputs:
        if spec.name in classes and spec.datatype in {"BYTES", "BOOL"}:
            raise TensorsRefused(
                f"classes are wanted of the output `{spec.name}`, which is {spec.datatype}",
                hint="expected an output of numbers; leave `classification` out for this one",
            )


DATATYPES = {
    name: "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    for name in model_config_pb2.DataType.keys()  # noqa: SIM118  it is no dictionary
}


DIGITS = "write its digits alone, as in 10"


def renamed_config(text: str, name: str) -> str:
    """Return a `config.pbtxt` for the same model under another name.

    Raises:
        ModelFailed: it is no `config.pbtxt`.

    """
    if fault := config_fault(text):
        line, reason, fix = fault
        raise ModelFailed(f"config.pbtxt:{line} cannot be read: {reason}", hint=fix)
    # The text is kept where it can be: of a message a `max_batch_size` of 0 is not written.
    own = f'name: "{name}"'
    try:
        names = read(text).all("name")
    except NotReadable:
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        config.name = name
        return str(text_format.MessageToString(config))
    if not names:
        return f"{own}\n{text}"
    return text[: names[0].start] + own + text[names[0].end :]


def config_fault(text: str) -> tuple[int, str, str] | None:
    """Return line, reason and fix where a `config.pbtxt` is none; nothing where Triton reads it."""
    try:
        text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        # It says place and reason in one text, "3:1 : Message type …".
        reason = str(error).partition(" : ")[2] or str(error)
        return error.GetLine() or 1, reason.rstrip("."), config_fix(reason)
    if fault := no_number(text):
        return fault[0], f"{fault[1]!r} is no number", DIGITS
    return None


def config_fix(reason: str) -> str:
    """Return how to mend what protobuf's parser says of a `config.pbtxt`."""
    pool = model_config_pb2.ModelConfig.DESCRIPTOR.file.pool
    if unknown := NO_FIELD.search(reason):
        known = [field.name for field in pool.FindMessageTypeByName(unknown[1]).fields]
    elif unknown := NO_VALUE.search(reason):
        known = [value.name for value in pool.FindEnumTypeByName(unknown[1]).values]
    else:
        return (
            "write `name: value` in each line, texts in quotation marks, numbers without; close "
            "every bracket and quotation mark; a comment begins with #"
        )
    wrong = unknown[2]
    near = [one for one in known if f"_{wrong}_" in f"_{one}_"]  # TYPE_FP32 for FP32
    near = near or difflib.get_close_matches(wrong, known, 1, cutoff=0.75)
    return f"write `{near[0]}` for `{wrong}`" if near else f"expected one of {', '.join(known)}"


def config_dictionary(text: str) -> dict[str, Any]:
    """Return a `config.pbtxt` as the dictionary that Triton gives its Python backends."""
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def config_signature(config: Mapping[str, Any]) -> Signature:
    """Return what a model takes and gives, from such a dictionary."""
    return signature_of(json_format.ParseDict(dict(config), model_config_pb2.ModelConfig()))
