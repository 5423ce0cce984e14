"""Triton over gRPC: lists, loads and unloads models, and tells whether they still answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2

from clients.base import Environment
from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelFailed,
    TensorsRefused,
    TooLargeAtOnce,
)
from clients.tensors.signature import zeros
from clients.triton.configuration import as_dictionary
from clients.triton.connection import Address
from clients.triton.errors import BACKENDS, load_error, still_in_use, still_loading, translate_error
from clients.triton.inference import TritonInference
from clients.triton.requests import DEADLINE, infer_request
from clients.triton.server import DIED_LOADING, ModelServer, ModelState, Tensors
from clients.triton.shared_memory import free_bytes

UNLOAD_LOOK_S = 0.02
RELOADED = "dispatcher_reloaded"  # a parameter that no backend knows
BUSY = frozenset({"READY", "UNLOADING"})

ROOM_S = 10.0  # how long a model that was loaded waits for shared memory
FITS = 2**19  # bytes of inputs for which there is always room

LONG_AGO = 1  # a deadline that has passed: the container's own backends answer without a run


@dataclass(frozen=True)
class TritonEnvironment(Environment):
    """The environment of clients in a process that controls and probes models too."""

    server: ModelServer


class Triton(TritonInference, ModelServer):
    """A Triton that is controlled and probed too.

    `repair` mends the links in the repository: where one is broken, Triton lists, loads and unloads
    no model at all. `scarce` says that each model may take only a share of the shared memory.
    """

    def __init__(
        self,
        address: Address | str,
        shared_bytes: int = 0,
        repository: Path | None = None,
        *,
        scarce: bool = False,
        repair: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(address, shared_bytes, repository)
        self._repair = repair
        self._scarce = scarce

    def is_ready(self, *, timeout: float) -> bool:
        try:
            return bool(self._call("ServerReady", service_pb2.ServerReadyRequest(), timeout).ready)
        except InferenceError:
            return False

    def tidy(self) -> None:
        self._regions.tidy()

    def load(self, model: str, *, timeout: float) -> None:
        until = time.monotonic() + timeout
        try:
            self._load(model, timeout)
        except ModelFailed as error:
            left = until - time.monotonic()
            if not error.message.endswith(DIED_LOADING) or left <= 0:
                raise
            # It may merely have been slow: Triton takes a process that is silent for a second for
            # dead.
            self._load(model, left)
        if self._scarce:
            self._take_room(model)

    def _mend_links(self) -> None:
        with suppress(OSError):  # Triton's own error says more
            self._repair()

    def models(self, *, timeout: float) -> list[ModelState]:
        self._mend_links()
        return super().models(timeout=timeout)

    def _load(self, model: str, timeout: float) -> None:
        self._mend_links()
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        try:
            self._call("RepositoryModelLoad", request, timeout)
        except DeadlineExceeded as error:
            raise still_loading(model, timeout) from error
        except InferenceError as error:
            reasons = [s.reason for s in self.models(timeout=timeout) if s.name == model]
            raise load_error(error, reasons) from error

    def _take_room(self, model: str) -> None:
        """Let a model take the shared memory that it needs.

        The container's own backends take it with their first request. The inputs of that request
        need memory too, and Triton never ends a request that does not fit.
        Raises TooLargeAtOnce: there is too little; the model is unloaded again.
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
            with suppress(InferenceError):  # the lack of room is what the caller should know
                self.unload(model, timeout=ROOM_S)
            raise
        except InferenceError:
            pass  # it is loaded: its first caller finds out what is wrong

    def reload(self, model: str, *, timeout: float) -> None:
        self._mend_links()
        answer = self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model), timeout)
        config = {"max_batch_size": 0, **as_dictionary(answer.config)}  # which JSON leaves out
        if config.get("backend") != "python":  # this project's backends add it, and refuse it
            for tensor in config.get("input", ()):
                tensor.pop("allow_ragged_batch", None)
        # Triton loads a model again only where its configuration has changed.
        changed = {RELOADED: {"string_value": str(time.time_ns())}}
        config["parameters"] = config.get("parameters", {}) | changed
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        request.parameters["config"].string_param = json.dumps(config)
        self._call("RepositoryModelLoad", request, timeout)

    def unload(self, model: str, *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._mend_links()
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        try:
            self._call("RepositoryModelUnload", request, timeout)
        except DeadlineExceeded as error:
            raise still_in_use(model, timeout) from error
        except InferenceError as error:
            raise self._explained(error, model, "", timeout) from error
        # Triton answers before the model's requests and processes have ended.
        while any(s.state in BUSY for s in self.models(timeout=timeout) if s.name == model):
            if time.monotonic() > deadline:
                raise still_in_use(model, timeout)
            time.sleep(UNLOAD_LOOK_S)

    def knock(self, model: str, inputs: Tensors, *, timeout: float) -> None:
        channel = self._channel(model)
        version = self.pinned.get(model, "")
        request = infer_request(model, version, inputs, (), {DEADLINE: LONG_AGO})
        try:
            channel.runs.infer(request, timeout)
        except (grpc.RpcError, ValueError, DeadlineExceeded) as error:
            if channel.abandoned:
                raise ModelFailed(channel.abandoned) from error
            if isinstance(error, ValueError):
                raise
            known = error if isinstance(error, DeadlineExceeded) else translate_error(error)
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


def await_room(size: int) -> None:
    """Wait until shared memory has room for inputs of `size` bytes.

    A model of the same name may still be unloading.
    """
    until = time.monotonic() + ROOM_S
    while size > FITS and free_bytes() < size:
        if time.monotonic() > until:
            raise TooLargeAtOnce("there is no room for its inputs in /dev/shm")
        time.sleep(UNLOAD_LOOK_S)
