"""Runs models on Triton; large tensors go through shared memory if there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelFailed,
    TensorsRefused,
    TooLargeAtOnce,
)
from clients.tensors.classes import classified, labels_at
from clients.triton.configuration import signature_of
from clients.triton.connection import Address, Connection, ModelChannel
from clients.triton.errors import FINISHED, inference_error, translated
from clients.triton.requests import DEADLINE, array_of, hint_parameters, infer_request, plain
from clients.triton.server import (
    NO_HINTS,
    Hints,
    Inference,
    Signature,
    Tensors,
    TensorSpec,
    is_filtered,
    is_picked,
)
from clients.triton.shared_memory import Arrays, Layout, Region, Regions, large, layout_of

SIGNATURE_S = 2.0  # how long a model's configuration is kept: the model may be loaded again

# Triton 2.51 ends with SIGSEGV when a call of an ensemble is cancelled, which is what gRPC does at
# its time limit. So that limit is later, and the steps end by the deadline that they are sent;
# dispatcher/execution/watchdog.py answers the caller in time.
#
# A model with a response cache has the later limit too: Triton keeps the error of a request that is
# cancelled while it waits in the queue, and answers equal requests with it.
UNCANCELLED_S = 60.0

CACHED = (
    "Triton's response cache keeps errors, and answers with fewer outputs, for requests with equal "
    "inputs: a restart empties it; see docs/triton-options.md"
)

REGION_S = 2.0  # for registering shared memory with Triton
MOST_CALLS = 1000  # of which the sizes of the answers are remembered


@dataclass(frozen=True)
class Call:
    """One run, without its tensors. Equal calls have answers of the same sizes.

    Args:
        model: its name.
        version: of the model; the empty text means the latest.
        outputs: the names of those that are wanted; none means all.
        specs: the model's outputs at present, where their sizes matter.
        picked: how many rows are wanted of an output; 0 where a number of their own decides.
        hints: what the backend may skip or combine.
        patience: seconds that the answer is waited for after the deadline.
        cached: whether Triton may have the answer in its response cache.

    """

    model: str
    version: str
    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    picked: tuple[tuple[str, int], ...]
    hints: Hints = field(compare=False)
    patience: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)


class TritonInference(Connection, Inference):
    """Runs models on a Triton.

    Args:
        address: where it listens for gRPC ("host:port" for one on this machine).
        shared_bytes: how much shared memory may be used.
        repository: its models, where their labels are read.

    """

    def __init__(
        self, address: Address | str, shared_bytes: int = 0, repository: Path | None = None
    ) -> None:
        super().__init__(address)
        self._repository = repository
        self._registration = Registration(self._call)
        self._regions = Regions(self._registration, shared_bytes)
        self._sizes: dict[Call, Mapping[str, tuple[int, int]]] = {}
        self._signatures: dict[tuple[str, str], tuple[float, Signature]] = {}

    def infer(  # noqa: PLR0913  as in the interface
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        hints: Hints = NO_HINTS,
        version: str = "",
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        classes, hints = classes or {}, plain(hints)
        deadline = time.monotonic() + timeout
        if classes:  # they depend on the model as it is now, not two seconds ago
            self._signatures.pop((model, version), None)
        signature = self.signature(model, version, timeout=timeout)
        refuse_what_harms(model, inputs, classes, signature)
        hints = NO_HINTS if signature.cached else hints
        names = () if signature.cached else tuple(outputs or classes)
        specs: tuple[TensorSpec, ...] = ()
        if self._regions.limit and not names:
            specs = signature.outputs
        call = Call(
            model,
            version,
            names,
            specs,
            (
                *((name, len(rows)) for name, rows in hints.rows.items()),
                *((name, 0) for name in hints.above),
            ),
            hints,
            patience=UNCANCELLED_S if signature.ensemble or signature.cached else 0.0,
            cached=signature.cached,
        )
        channel = self._channels.get(model, self._common)
        try:
            arrays = self._through_memory(channel, call, inputs, deadline)
            if arrays is None:
                arrays = self._run(channel, call, inputs, None, deadline)
        except (grpc.RpcError, ValueError) as error:
            if channel.abandoned:
                raise ModelFailed(channel.abandoned) from error
            known = inference_error(error, signature, inputs)
            late = time.monotonic() > deadline
            raise self._noted(
                model, self._explained(known, model, version, timeout, late=late)
            ) from error
        wanted = {*outputs, *classes}
        missing = missing_output(arrays, wanted, signature)
        if missing and not wanted:  # the model may have been loaded again since
            self._signatures.pop((model, version), None)
            left = max(0.0, deadline - time.monotonic())
            signature = self.signature(model, version, timeout=left)
            missing = missing_output(arrays, wanted, signature)
        if missing:
            hint = CACHED if signature.cached else ""
            raise self._noted(
                model, ModelFailed(f"the model {model!r} answered {missing}", hint=hint)
            )
        self._failing.discard(model)
        if channel is self._common:  # not for every name that a caller makes up
            self._channels.setdefault(model, ModelChannel(self._address))
        for name, count in classes.items():
            labels = self._labels(model, version, name, deadline - time.monotonic())
            batched = signature.max_batch_size > 0
            arrays[name] = classified(arrays[name], count, labels, batched=batched)
        return in_order(arrays, (*outputs, *classes), signature)

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        now = time.monotonic()
        read_at, known = self._signatures.get((model, version), (0.0, None))
        if known is None or now > read_at + SIGNATURE_S:
            config = self._config(model, version, timeout)
            known = signature_of(config)
            if known.ensemble:
                names = (step.model_name for step in config.ensemble_scheduling.step)
                steps = [self.signature(one, timeout=timeout) for one in names]
                shares = known.max_batch_size > 1 and all(one.shares_runs for one in steps)
                cached = known.cached or any(one.cached for one in steps)
                known = replace(known, shares_runs=shares, cached=cached)
            self._signatures[model, version] = (now, known)
        return known

    def _labels(self, model: str, version: str, output: str, timeout: float) -> Sequence[bytes]:
        """Return the labels of an output; an ensemble has those of its step."""
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

    def _noted(self, model: str, error: InferenceError) -> InferenceError:
        """Note that a model's last run failed, if it did; return the error."""
        if isinstance(error, ModelFailed | DeadlineExceeded):
            self._failing.add(model)
        return error

    def _through_memory(
        self, channel: ModelChannel, call: Call, inputs: Tensors, deadline: float
    ) -> Arrays | None:
        """Run with the large tensors in shared memory; return `None` if there is no room."""
        layout = layout_of(inputs, self._sizes.get(call, {}))
        region = self._regions.take(layout.size) if layout.size else None
        if region is None:
            return None
        idle, known = False, True
        try:
            try:
                arrays = self._run(channel, call, inputs, replace(layout, region=region), deadline)
            except (TensorsRefused, ValueError):  # before the request, or after the response
                idle = True
                if not layout.outputs:
                    raise
            except grpc.RpcError as error:
                idle = error.code() in FINISHED
                if not idle or isinstance(translated(error), TooLargeAtOnce):
                    raise
                known = self._knows(region)
                if known and not layout.outputs:
                    raise
            else:
                idle = True
                return arrays
            # Triton was restarted and lost the region, or the answer has other sizes than expected.
            arrays = self._run(channel, call, inputs, None, deadline)
            if known:
                self._sizes[call] = {}
            return arrays
        finally:
            if known:
                self._regions.give_back(region, idle=idle)
            else:
                self._regions.drop(region)

    def _knows(self, region: Region) -> bool:
        """Whether Triton has a region registered; true where it does not say."""
        try:
            return region.name in self._registration.registered()
        except InferenceError:
            return True

    def _run(
        self,
        channel: ModelChannel,
        call: Call,
        inputs: Tensors,
        layout: Layout | None,
        deadline: float,
    ) -> Arrays:
        timeout = deadline - time.monotonic()
        names = call.outputs
        parameters: dict[str, int | str] = {}
        if not call.cached:
            parameters = {
                DEADLINE: round((time.time() + timeout) * 1e6),
                "timeout": max(1, round(timeout * 1e6)),
                **hint_parameters(call.model, call.hints),
            }
        if layout and layout.outputs:  # then each has to be named
            names = names or tuple(spec.name for spec in call.specs)
        request = infer_request(call.model, call.version, inputs, names, parameters, layout)
        answer = channel.stub.ModelInfer(request, timeout=timeout + call.patience)
        arrays = {
            output.name: layout.read(output.name, triton_to_np_dtype(output.datatype), output.shape)
            if layout and output.name in layout.outputs
            else array_of(answer, number)
            for number, output in enumerate(answer.outputs)
        }
        if call not in self._sizes and self._regions.limit:
            self._remember_sizes(call, inputs, arrays)
        return arrays

    def _remember_sizes(self, call: Call, inputs: Tensors, arrays: Arrays) -> None:
        """Remember the sizes of an answer, to reserve shared memory for the next one."""
        if len(self._sizes) >= MOST_CALLS:
            self._sizes.clear()
        sent = sum(array.nbytes for array in inputs.values())
        rows, above = call.hints.rows, call.hints.above
        self._sizes[call] = {
            name: (
                # How many rows are left out differs with every picture.
                0 if is_filtered(array, above.get(name)) else large(array),
                0 if is_picked(array, rows.get(name)) else sent,
            )
            for name, array in arrays.items()
        }


@dataclass(frozen=True)
class Registration:
    """Registers regions of shared memory with Triton.

    Args:
        call: calls a method of its gRPC service.

    """

    call: Callable[[str, Any, float], Any]

    def register(self, name: str, size: int) -> None:
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{name}", byte_size=size
        )
        self.call("SystemSharedMemoryRegister", request, REGION_S)

    def unregister(self, name: str) -> None:
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        self.call("SystemSharedMemoryUnregister", request, REGION_S)

    def registered(self) -> list[str]:
        request = service_pb2.SystemSharedMemoryStatusRequest()
        return list(self.call("SystemSharedMemoryStatus", request, REGION_S).regions)


def in_order(arrays: Arrays, wanted: Sequence[str], signature: Signature) -> Arrays:
    """Return outputs in the order of the request, else of the configuration.

    A model process answers in the order in which Triton passes it their names, which differs from
    process to process.
    """
    known = wanted or [*(spec.name for spec in signature.outputs), *sorted(arrays)]
    return {name: arrays[name] for name in known if name in arrays}


def missing_output(arrays: Arrays, wanted: Collection[str], signature: Signature) -> str:
    """Return the outputs that a model did not give, in words; empty if it gave all.

    A model of the Python backend may leave some out. If no output is named, any output of the
    configuration is enough: some may depend on inputs.
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
    """Raise TensorsRefused for requests that harm Triton 2.51.

    It does not refuse them itself, or not in time: it never answers some batches of no items.
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
