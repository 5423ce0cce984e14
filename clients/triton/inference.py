"""Runs models on Triton; large tensors go through shared memory if there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
)
from clients.request import SequencePart, Stream, trace_headers
from clients.tensors.classes import classify, labels_at
from clients.triton.configuration import signature_of
from clients.triton.connection import Address, ModelChannel
from clients.triton.errors import (
    FINISHED,
    by_states,
    inference_error,
    load_reason,
    no_slot,
    too_late,
    translate_error,
)
from clients.triton.requests import (
    TritonStream,
    array_of,
    as_answer,
    callers_own,
    hint_parameters,
    in_order,
    infer_request,
    refuse_what_harms,
    sequence_parameters,
    time_parameters,
)
from clients.triton.server import (
    NO_HINTS,
    Hints,
    Inference,
    ModelState,
    Scalar,
    Signature,
    Tensors,
    is_filtered,
)
from clients.triton.shared_memory import Arrays, Layout, Region, Regions, large

SIGNATURE_S = 2.0  # how long a model's configuration is kept: the model may be loaded again

CACHED = (
    "Triton's response cache keeps errors, and answers with fewer outputs, for requests with equal "
    "inputs: a restart empties it; see docs/triton-options.md"
)

LISTING_TRIES = 5

MOST_RUNS = 1000  # of which the sizes of the answers are remembered

RunKey = tuple[Any, ...]
"""Model, version, outputs and shapes: runs of one key have answers of the same sizes, mostly."""


class TritonInference(Inference):
    """Runs models on a Triton, and translates its errors."""

    def __init__(
        self, address: Address | str, shared_bytes: int = 0, repository: Path | None = None
    ) -> None:
        self._address = Address(address) if isinstance(address, str) else address
        self._common = ModelChannel(self._address)  # of control, and of models that never answered
        self._channels: dict[str, ModelChannel] = {}
        self._failing: set[str] = set()
        self._repository = repository
        self._regions = Regions(self._call, shared_bytes)
        self._sizes: dict[RunKey, Mapping[str, int]] = {}
        self.pinned: Mapping[str, str] = {}
        self._signatures: dict[tuple[str, str], tuple[float, Signature]] = {}

    def close(self) -> None:
        """Close the channel of control; nothing is called afterwards."""
        self._common.abandon("it was closed")

    def _call(self, method: str, request: Any, timeout: float) -> Any:
        """Call a method of Triton's gRPC service; return its response.

        Raises InferenceError: translated from the gRPC status.
        """
        try:
            metadata = self._address.metadata()
            return getattr(self._common.stub, method)(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise translate_error(error) from error

    def models(self, *, timeout: float) -> list[ModelState]:
        # Triton lists nothing while a folder vanishes whose name it has just read.
        for left in reversed(range(LISTING_TRIES)):
            try:
                request = service_pb2.RepositoryIndexRequest()
                index = self._call("RepositoryIndex", request, timeout).models
                break
            except ModelFailed:
                if not left:
                    raise
        # Triton promises no order.
        index = sorted(index, key=lambda m: (m.name, len(m.version), m.version))
        return [ModelState(m.name, m.version, m.state, load_reason(m.reason)) for m in index]

    def _config(self, model: str, version: str, timeout: float) -> Any:
        """Return a model's `ModelConfig`, as Triton has completed it."""
        if not isinstance(version, str):
            raise TensorsRefused("model version must be a string")
        request = service_pb2.ModelConfigRequest(name=model, version=version)
        try:
            return self._call("ModelConfig", request, timeout).config
        except InferenceError as error:
            raise self._explained(error, model, version, timeout) from error

    def _explained(
        self,
        error: InferenceError,
        model: str,
        version: str,
        timeout: float,
        *,
        late: bool = False,
    ) -> InferenceError:
        """Return an error that says whether model, version or readiness was the reason.

        Triton's status leaves that open, so its list of models is asked. `late` is whether the
        deadline has passed: the container's own backends refuse a request then.
        """
        if isinstance(error, DeadlineExceeded) or (late and isinstance(error, TensorsRefused)):
            return too_late(model, timeout)
        if not isinstance(error, UnknownModel | ModelUnavailable):
            return error
        try:
            states = [state for state in self.models(timeout=timeout) if state.name == model]
        except DeadlineExceeded:  # the rest of the time was too short for the list
            return too_late(model, timeout)
        except InferenceError:
            return ModelUnavailable(
                "Triton does not answer", hint="it may be starting: try again in a few seconds"
            )
        return by_states(error, model, version, states)

    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        classes: Mapping[str, int] | None = None,
        hints: Hints = NO_HINTS,
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Scalar] | None = None,
        timeout: float,
    ) -> dict[str, npt.NDArray[np.generic]]:
        classes = classes or {}
        version = version or self.pinned.get(model, "")
        deadline = time.monotonic() + timeout
        if classes:  # they depend on the model as it is now, not two seconds ago
            self._signatures.pop((model, version), None)
        signature = self.signature(model, version, timeout=timeout)
        refuse_what_harms(model, inputs, classes, signature)
        names = () if signature.cached else tuple(outputs or classes)
        every = tuple(spec.name for spec in signature.outputs)
        sequenced = sequence_parameters(sequence, model, signature)
        own = callers_own(parameters)
        hinted = hint_parameters(model, hints)
        channel = self._channel(model)
        channel.runs.refuse_if_many_are_late(model)

        def run(layout: Layout | None) -> Arrays:
            left = deadline - time.monotonic()
            sent: dict[str, Scalar] = {**own, **time_parameters(left), **hinted, **sequenced}
            wanted = names or (every if layout and layout.outputs else ())
            sent = {} if signature.cached else sent
            request = infer_request(model, version, inputs, wanted, sent, layout=layout)
            answer = channel.runs.infer(request, left)
            each = enumerate(answer.outputs)
            return as_answer(
                ((one.name, output_of(answer, at, layout)) for at, one in each), answer
            )

        shapes = tuple((name, array.shape) for name, array in inputs.items())
        rows = tuple(map(len, hints.rows.values()))
        key = (model, version, names, signature.outputs, shapes, rows)
        try:
            # A run may be repeated after one through memory, which would change a sequence's state
            # twice.
            arrays = run(None) if sequenced else self._through_memory(inputs, key, run)
            if key not in self._sizes and self._regions.limit:
                self._remember_sizes(key, arrays, hints)
        except (grpc.RpcError, ValueError, DeadlineExceeded) as error:
            # Not kept in a variable here: the error has this frame, which has the tensors.
            raise self._failure(
                inference_error(error, signature, inputs, channel.abandoned),
                model,
                version,
                timeout,
                begins=bool(sequenced.get("sequence_start")),
                late=time.monotonic() > deadline,
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
        self._note_answer(model, channel)
        for name, count in classes.items():
            labels = self._labels(model, version, name, deadline - time.monotonic())
            batched = signature.max_batch_size > 0
            arrays[name] = classify(arrays[name], count, labels, batched=batched)
        return in_order(arrays, (*outputs, *classes), signature)

    def stream(
        self,
        model: str,
        inputs: Tensors,
        *,
        outputs: Sequence[str] = (),
        version: str = "",
        sequence: SequencePart | None = None,
        parameters: Mapping[str, Scalar] | None = None,
        timeout: float,
    ) -> Stream[Arrays]:
        version = version or self.pinned.get(model, "")
        signature = self.signature(model, version, timeout=timeout)
        refuse_what_harms(model, inputs, {}, signature, stream=True)
        sent: dict[str, Scalar] = {**callers_own(parameters), **time_parameters(timeout)}
        sent |= sequence_parameters(sequence, model, signature)
        request = infer_request(model, version, inputs, outputs, sent)
        channel = self._channel(model)
        metadata = (*self._address.metadata(), *trace_headers())
        call = channel.stub.ModelStreamInfer(iter([request]), timeout=timeout, metadata=metadata)

        def explained(error: grpc.RpcError | ValueError | InferenceError) -> InferenceError:
            return self._failure(
                inference_error(error, signature, inputs, channel.abandoned),
                model,
                version,
                timeout,
            )

        return TritonStream(call, signature, explained, partial(self._note_answer, model, channel))

    def _failure(
        self,
        cause: InferenceError,
        model: str,
        version: str,
        timeout: float,
        *,
        begins: bool = False,
        late: bool = False,
    ) -> InferenceError:
        """Return the contract's error for a run that failed, began a sequence or came late."""
        if begins and isinstance(cause, DeadlineExceeded):
            return no_slot(model, timeout)
        return self._noted(model, self._explained(cause, model, version, timeout, late=late))

    def _channel(self, model: str) -> ModelChannel:
        """Return the channel on which a model is asked.

        A broken one is replaced; what is still asked on it reaches its time limit.
        """
        channel = self._channels.get(model, self._common)
        if channel.runs.is_broken:
            new = ModelChannel(self._address)
            if channel is self._common:
                self._common = new
            else:
                self._channels[model] = new
            return new
        return channel

    def _note_answer(self, model: str, channel: ModelChannel) -> None:
        """Note that a model has answered on a channel: from now on it has one of its own."""
        self._failing.discard(model)
        if channel is self._common:  # not for every name that a caller makes up
            self._channels.setdefault(model, ModelChannel(self._address))

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        now = time.monotonic()
        version = version or self.pinned.get(model, "")
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
                for one in steps:  # they get the sequence of the whole
                    if one.sequence:
                        known = replace(
                            known, sequence=True, correlation=one.correlation, idle_s=one.idle_s
                        )
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
        self, inputs: Tensors, key: RunKey, run: Callable[[Layout | None], Arrays]
    ) -> Arrays:
        """Run with the large tensors in shared memory, if there is room."""
        layout = Layout(inputs, self._sizes.get(key, {}))
        region = layout.region = self._regions.take(layout.size) if layout.size else None
        if region is None:
            return run(None)
        idle, known = False, True
        try:
            arrays = run(layout)
        except (TensorsRefused, ValueError):  # before it was sent, or after the response
            idle = True
            if not layout.outputs:
                raise
        except grpc.RpcError as error:
            idle = error.code() in FINISHED
            if not idle or isinstance(translate_error(error), TooLargeAtOnce):
                raise
            known = self._knows(region)
            if known and not layout.outputs:
                raise
        else:
            idle = True
            return arrays
        finally:
            if known:
                self._regions.give_back(region, idle=idle)
            else:
                self._regions.drop(region)
        # Triton was restarted and lost the region, or the answer has other sizes than the last.
        arrays = run(None)
        if known:
            self._sizes[key] = {}
        return arrays

    def _remember_sizes(self, key: RunKey, arrays: Arrays, hints: Hints) -> None:
        """Remember the sizes of an answer, to reserve shared memory for the next one like it."""
        if len(self._sizes) >= MOST_RUNS:
            self._sizes.clear()
        # How many rows are left out differs with every picture.
        sizes = {n: large(a) for n, a in arrays.items() if not is_filtered(a, hints.above.get(n))}
        self._sizes[key] = {name: size for name, size in sizes.items() if size}

    def _knows(self, region: Region) -> bool:
        """Whether Triton has a region registered; true where it does not say."""
        try:
            return region.name in self._regions.registered()
        except InferenceError:
            return True


def output_of(answer: Any, number: int, layout: Layout | None) -> npt.NDArray[np.generic]:
    """Return an output, which may be in shared memory; ValueError where its size is another."""
    output = answer.outputs[number]
    if layout is None or layout.region is None or output.name not in layout.outputs:
        return array_of(answer, number)
    place, _ = layout.outputs[output.name]
    return layout.region.read(place, triton_to_np_dtype(output.datatype), output.shape)


def missing_output(arrays: Collection[str], wanted: Collection[str], signature: Signature) -> str:
    """Return the outputs that a model did not give, in words; empty if it gave all.

    A model of the Python backend may leave some out. If no output is named, any output of the
    configuration is enough: some may depend on inputs.
    """
    has = [spec.name for spec in signature.outputs]
    missing = sorted(name for name in wanted if name not in arrays)
    if not missing and (wanted or not has or not set(arrays).isdisjoint(has)):
        return ""
    gave = ", ".join(map(repr, arrays)) or "none"
    return f"without its output {', '.join(map(repr, missing or has))}; it gave {gave}"
