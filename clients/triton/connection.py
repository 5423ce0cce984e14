"""The connection to Triton, for inference, control and probe.

The channels are made in each process after the fork, which gRPC does not survive. All threads share
them: they are thread-safe except for streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    UnknownModel,
    UnknownVersion,
)
from clients.triton.channel import Address, ModelChannel
from clients.triton.errors import first_line, not_ready, too_late, translated
from clients.triton.requests import DEADLINE, infer_request
from clients.triton.server import ModelState, Probe, Tensors

LONG_AGO = 1  # a deadline that has passed: the container's own backends answer without a run
LISTING_TRIES = 5

REGION_S = 2.0  # for registering shared memory with Triton


class Connection:
    """Calls Triton, and translates its errors.

    Args:
        address: where Triton listens for gRPC; a text is that of a Triton on this machine
            ("host:port").

    """

    def __init__(self, address: Address | str) -> None:
        self._address = Address(address) if isinstance(address, str) else address
        self._common = ModelChannel(self._address)  # of control, and of models that never answered
        self._channels: dict[str, ModelChannel] = {}
        self._steady = ModelChannel(self._address, steady=True) if self._address.elsewhere else None
        self._failing: set[str] = set()

    def close(self) -> None:
        """Close the channel of control; nothing is called afterwards."""
        self._common.abandon("it was closed")

    def _call(self, method: str, request: Any, timeout: float) -> Any:
        """Call a method of Triton's gRPC service; return its response.

        Raises:
            InferenceError: translated from the gRPC status.

        """
        try:
            return getattr(self._common.stub, method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise translated(error) from error

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
        return [ModelState(m.name, m.version, m.state, first_line(m.reason)) for m in index]

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


class TritonProbe(Connection, Probe):
    """Probes models of a Triton; see `Connection` for the argument."""

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        channel = self._channels.get(model, self._common)
        request = infer_request(model, "", inputs, (), {DEADLINE: LONG_AGO})
        try:
            channel.infer(request, timeout)
        except (grpc.RpcError, ValueError) as error:
            if channel.abandoned:
                raise ModelFailed(channel.abandoned) from error
            if isinstance(error, ValueError):
                raise
            known = translated(error)
            if not isinstance(known, TensorsRefused):
                raise self._explained(known, model, "", timeout) from error

    def abandon(self, model: str, reason: str, *, within: float = 0.0) -> None:
        self._failing.add(model)
        channel = self._channels.pop(model, None)
        if channel and within:
            timer = threading.Timer(within, channel.abandon, (reason,))
            timer.daemon = True
            timer.start()
        elif channel:
            channel.abandon(reason)

    def note_failure(self, model: str) -> None:
        self._failing.add(model)

    def take_failing(self) -> set[str]:
        failing = set(self._failing)
        self._failing -= failing
        return failing

    def instances(self, model: str, *, timeout: float) -> int:
        request = service_pb2.ModelConfigRequest(name=model)
        config = self._call("ModelConfig", request, timeout).config
        return sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)

    def answered(self, model: str, *, timeout: float) -> int:
        request = service_pb2.ModelStatisticsRequest(name=model)
        versions = self._call("ModelStatistics", request, timeout).model_stats
        return sum(version.inference_stats.success.count for version in versions)


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


def by_states(
    error: InferenceError, model: str, version: str, states: Sequence[ModelState]
) -> InferenceError:
    """Return why a model refused a request, from the states of its versions."""
    ready = [state.version for state in states if state.ready]
    if not states:
        return UnknownModel(f"there is no model {model!r} in the model repository")
    if not ready:
        return not_ready(model, states)
    if version and version not in ready:
        return UnknownVersion(
            f"the model {model!r} has no version {version!r}",
            hint=f"versions that are served: {', '.join(ready)}",
        )
    if isinstance(error, UnknownModel):  # the model's own code said so
        return ModelFailed(error.message)
    return ModelBusy(
        f"the model {model!r} does not take this now: {error.message}",
        hint="try again after Retry-After seconds",
    )
