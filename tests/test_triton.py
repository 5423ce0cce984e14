"""What Triton's errors become. The Triton is a fake: a real one is never late when it is to be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from clients.errors import (
    DeadlineExceeded,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
)
from clients.triton import Triton

ARRAYS = {"x": np.zeros((1, 2), np.float32)}


@dataclass
class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Refuses every request with `code`, and says what it has after `delay` seconds."""

    code: grpc.StatusCode = grpc.StatusCode.NOT_FOUND
    delay: float = 0.0
    scores: str = "TYPE_FP32"
    runs: float = 0.0
    left: list[float] = field(default_factory=list)

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.left.append(context.time_remaining())
        time.sleep(self.runs)
        context.abort(self.code, f"Request for unknown model: '{request.model_name}'")

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        answer.config.instance_group.add(count=2, gpus=[0, 1])
        answer.config.instance_group.add(count=3)
        for name, kind in (("words", "TYPE_STRING"), ("scores", self.scores)):
            answer.config.output.add(
                name=name, data_type=model_config_pb2.DataType.Value(kind), dims=[3]
            )
        answer.config.max_batch_size = 4
        if request.name == "chain":
            answer.config.ensemble_scheduling.step.add(model_name="here")
        answer.config.model_transaction_policy.decoupled = request.name == "chatty"
        return answer

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay)
        answer = service_pb2.RepositoryIndexResponse()
        answer.models.add(name="here", version="1", state="READY")
        return answer

    def RepositoryModelLoad(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        time.sleep(self.delay)
        return service_pb2.RepositoryModelLoadResponse()


@pytest.fixture
def refusing() -> Refusing:
    return Refusing()


@pytest.fixture
def triton(refusing: Refusing) -> Iterator[Triton]:
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(refusing, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Triton(f"127.0.0.1:{port}")
    server.stop(None).wait()


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
def test_what_there_is_not_is_named(refusing: Refusing, triton: Triton, code: Any) -> None:
    refusing.code = code
    with pytest.raises(UnknownModel, match="no model 'gone'"):
        triton.infer("gone", ARRAYS, timeout=5)
    with pytest.raises(UnknownVersion, match="no version '2'") as told:
        triton.infer("here", ARRAYS, version="2", timeout=5)
    assert "1" in told.value.hint


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
def test_no_time_to_say_what_there_is_not_is_no_outage(
    refusing: Refusing, triton: Triton, code: Any
) -> None:
    refusing.code, refusing.delay = code, 1.0
    with pytest.raises(DeadlineExceeded, match=r"'here' did not answer within 0\.200 s"):
        triton.infer("here", ARRAYS, version="2", timeout=0.2)


def test_a_triton_that_is_gone_is_an_outage() -> None:
    with pytest.raises(ModelUnavailable, match="Triton does not answer"):
        Triton("127.0.0.1:1").infer("here", ARRAYS, timeout=5)


def test_instances_are_as_many_on_each_gpu(triton: Triton) -> None:
    assert triton.instances("here", timeout=5) == 2 * 2 + 3


def test_a_load_that_takes_longer_has_not_failed(refusing: Refusing, triton: Triton) -> None:
    refusing.delay = 1.0
    with pytest.raises(DeadlineExceeded, match=r"'here' was not loaded within 0\.2 s") as told:
        triton.load("here", timeout=0.2)
    assert "GET /models/here" in told.value.hint


def test_classes_of_texts_never_reach_triton(refusing: Refusing, triton: Triton) -> None:
    """It would end with SIGFPE, and every model with it."""
    refusing.code = grpc.StatusCode.INTERNAL
    with pytest.raises(TensorsRefused, match="`words`, which is BYTES"):
        triton.infer("here", ARRAYS, classes={"scores": 1, "words": 1}, timeout=5)
    with pytest.raises(ModelFailed):  # it was asked
        triton.infer("here", ARRAYS, classes={"scores": 1}, timeout=5)
    refusing.scores = "TYPE_STRING"  # it was loaded anew
    with pytest.raises(TensorsRefused, match="`scores`, which is BYTES"):
        triton.infer("here", ARRAYS, classes={"scores": 1}, timeout=5)


def test_a_decoupled_model_is_not_too_large(refusing: Refusing, triton: Triton) -> None:
    refusing.code = grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(TensorsRefused, match="'chatty' is decoupled"):
        triton.infer("chatty", ARRAYS, timeout=5)
    with pytest.raises(TooLargeAtOnce):
        triton.infer("here", ARRAYS, timeout=5)


def test_a_call_of_an_ensemble_is_not_cancelled(refusing: Refusing, triton: Triton) -> None:
    """Triton would end with SIGSEGV: it has to answer itself, which its steps do in time."""
    refusing.code = grpc.StatusCode.INVALID_ARGUMENT
    for name in ("here", "chain"):
        with pytest.raises(TensorsRefused):
            triton.infer(name, ARRAYS, timeout=5)
    here, chain = refusing.left
    assert here < 6  # gRPC rounds it up on its way
    assert chain > 30
    refusing.runs = 0.3
    with pytest.raises(DeadlineExceeded, match=r"'chain' did not answer within 0\.1"):
        triton.infer("chain", ARRAYS, timeout=0.1)


def test_a_batch_of_no_items_never_reaches_triton(refusing: Refusing, triton: Triton) -> None:
    """It would never be answered."""
    with pytest.raises(TensorsRefused, match="a batch of no items"):
        triton.infer("here", {"x": np.zeros((0, 0), np.float32)}, timeout=5)
    assert refusing.left == []
