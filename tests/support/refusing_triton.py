"""A gRPC server in Triton's place, which refuses requests as a test tells it to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from clients.triton.client import Triton
from clients.triton.server import ModelState
from tests.conftest import PATIENCE_S

ARRAYS = {"x": np.zeros((1, 2), np.float32)}


@dataclass
class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Refuses every request with `code`, and says what it has after `delay` seconds.

    A run ends after `runs` seconds, once `ends` is set.
    """

    code: grpc.StatusCode = grpc.StatusCode.NOT_FOUND
    said: str = ""
    delay: float = 0.0
    backend: str = "onnxruntime"
    scores: str = "TYPE_FP32"
    runs: float = 0.0
    ends: Event = field(default_factory=Event)
    left: list[float] = field(default_factory=list)
    no_list: list[str] = field(default_factory=list)
    index: ModelState = ModelState("here", "1", "READY")
    others: tuple[ModelState, ...] = ()
    parts: tuple[str, ...] = ()  # of the ensemble "whole"
    gives: tuple[str, ...] = ()  # outputs, [1] each, in place of a refusal

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.left.append(context.time_remaining())
        time.sleep(self.runs)
        self.ends.wait(PATIENCE_S)
        if not self.gives:
            context.abort(self.code, self.said or f"unknown model: '{request.model_name}'")
        answer = service_pb2.ModelInferResponse()
        for name in self.gives:
            answer.outputs.add(name=name, datatype="UINT8", shape=[1])
            answer.raw_output_contents.append(name[:1].encode())
        return answer

    def ModelStreamInfer(self, requests: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        yield service_pb2.ModelStreamInferResponse(error_message=self.said)

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        answer.config.instance_group.add(count=2, gpus=[0, 1])
        answer.config.instance_group.add(count=3)
        for name, kind in (("words", "TYPE_STRING"), ("scores", self.scores)):
            answer.config.output.add(
                name=name, data_type=model_config_pb2.DataType.Value(kind), dims=[3]
            )
        answer.config.max_batch_size = 4
        answer.config.backend = self.backend
        if request.name == "gathers":
            answer.config.dynamic_batching.SetInParent()
        for part in self.parts if request.name == "whole" else ():
            answer.config.ensemble_scheduling.step.add(model_name=part)
        if request.name == "stateful":
            answer.config.sequence_batching.max_sequence_idle_microseconds = 1
        if request.name == "chain":
            answer.config.ensemble_scheduling.step.add(model_name="here")
            for name in ("x", "y"):
                answer.config.input.add(
                    name=name, data_type="TYPE_FP32", dims=[2], optional=name == "y"
                )
        answer.config.model_transaction_policy.decoupled = request.name == "chatty"
        return answer

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay)
        if self.no_list:
            context.abort(grpc.StatusCode.INTERNAL, self.no_list.pop())
        answer = service_pb2.RepositoryIndexResponse()
        for one in (self.index, *self.others):
            answer.models.add(**asdict(one))
        return answer

    def RepositoryModelUnload(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay)
        return service_pb2.RepositoryModelUnloadResponse()

    def RepositoryModelLoad(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay)
        if self.said:
            context.abort(grpc.StatusCode.INTERNAL, self.said)
        return service_pb2.RepositoryModelLoadResponse()


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    made = Refusing()
    made.ends.set()
    yield made
    made.ends.set()


@pytest.fixture
def triton(refusing: Refusing) -> Iterator[Triton]:
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(refusing, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Triton(f"127.0.0.1:{port}")
    server.stop(None).wait()
