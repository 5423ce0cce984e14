"""What Triton's errors become. The Triton is a fake: a real one is never late when it is to be."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from clients.errors import (
    DeadlineExceeded,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
    UnknownModel,
    UnknownVersion,
)
from clients.triton.client import Triton, renamed_config
from clients.triton.server import ModelState, Signature, TensorSpec
from container.triton_backends.model_config import TO_MEND

ARRAYS = {"x": np.zeros((1, 2), np.float32)}


@dataclass
class Refusing(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Refuses every request with `code`, and says what it has after `delay` seconds."""

    code: grpc.StatusCode = grpc.StatusCode.NOT_FOUND
    said: str = ""
    delay: float = 0.0
    backend: str = "onnxruntime"
    scores: str = "TYPE_FP32"
    runs: float = 0.0
    left: list[float] = field(default_factory=list)
    no_list: list[str] = field(default_factory=list)
    index: ModelState = ModelState("here", "1", "READY")
    others: tuple[ModelState, ...] = ()
    parts: tuple[str, ...] = ()  # of the ensemble "whole"
    gives: tuple[str, ...] = ()  # outputs, [1] each, in place of a refusal

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.left.append(context.time_remaining())
        time.sleep(self.runs)
        if not self.gives:
            context.abort(self.code, self.said or f"unknown model: '{request.model_name}'")
        answer = service_pb2.ModelInferResponse()
        for name in self.gives:
            answer.outputs.add(name=name, datatype="UINT8", shape=[1])
            answer.raw_output_contents.append(name[:1].encode())
        return answer

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
    with pytest.raises(UnknownVersion, match="no version '2'") as caught:
        triton.infer("here", ARRAYS, version="2", timeout=5)
    assert "1" in caught.value.hint


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


def test_a_folder_that_goes_while_triton_lists_them_is_nobody_s_failure(
    refusing: Refusing, triton: Triton
) -> None:
    gone = "failed to stat file /repository/gone"
    refusing.no_list = [gone] * 4
    assert [model.name for model in triton.models(timeout=5)] == ["here"]
    refusing.no_list = [gone] * 5
    with pytest.raises(ModelFailed, match=gone):
        triton.models(timeout=5)


@pytest.mark.parametrize(
    ("gives", "wanted", "expected"),
    [
        (("scores", "words"), (), ["words", "scores"]),  # as in ModelConfig
        (("words", "scores"), (), ["words", "scores"]),
        (("words", "scores"), ("scores", "words"), ["scores", "words"]),
        (("scores", "words"), ("scores", "words"), ["scores", "words"]),
        # It was loaded again since its configuration was read.
        (("zebra", "scores", "ant", "words"), (), ["words", "scores", "ant", "zebra"]),
    ],
)
def test_outputs_come_as_they_are_asked_for_else_as_they_are_configured(
    refusing: Refusing,
    triton: Triton,
    gives: tuple[str, ...],
    wanted: tuple[str, ...],
    expected: list[str],
) -> None:
    refusing.gives = gives
    answer = triton.infer("here", ARRAYS, outputs=wanted, timeout=5)
    assert list(answer) == expected
    assert [chr(array[0]) for array in answer.values()] == [name[0] for name in expected]


def test_models_are_listed_by_name_and_version(refusing: Refusing, triton: Triton) -> None:
    versions = [("here", "10"), ("a", "1"), ("here", "9")]
    refusing.others = tuple(ModelState(name, version, "READY") for name, version in versions)
    listed = [(state.name, state.version) for state in triton.models(timeout=5)]
    assert listed == [("a", "1"), ("here", "1"), ("here", "9"), ("here", "10")]
    with pytest.raises(UnknownVersion) as caught:
        triton.infer("here", ARRAYS, version="7", timeout=5)
    assert caught.value.hint.endswith(": 1, 9, 10")


@pytest.mark.parametrize("number", ["1_0", "0b11", "+4", "\u0664", "-1_0"])
def test_a_number_that_triton_refuses_is_not_made_right_under_another_name(number: str) -> None:
    text = f'name: "0b1" # 1_0\nmax_batch_size: {number}\n'
    with pytest.raises(ModelFailed, match=r"config\.pbtxt:2 .* is no number") as caught:
        renamed_config(text, "b")
    assert repr(number) in caught.value.message
    assert caught.value.hint == "write its digits alone, as in 10"
    right = 'name: "b"\nmax_batch_size: 0x10\n'
    assert renamed_config(right.replace('"b"', '"0b1"'), "b") == right


def test_a_load_that_takes_longer_has_not_failed(refusing: Refusing, triton: Triton) -> None:
    refusing.delay = 1.0
    with pytest.raises(DeadlineExceeded, match=r"'here' was not loaded within 0\.2 s") as caught:
        triton.load("here", timeout=0.2)
    assert "GET /models/here" in caught.value.hint


@pytest.mark.parametrize("delay", [0, 1.0])
def test_an_unload_that_takes_longer_is_told_as_that(
    refusing: Refusing, triton: Triton, delay: float
) -> None:
    refusing.index, refusing.delay = ModelState("here", "1", "UNLOADING"), delay
    with pytest.raises(DeadlineExceeded, match=r"'here' was not unloaded within 0\.2 s") as caught:
        triton.unload("here", timeout=0.2)
    assert "GET /models/here" in caught.value.hint
    assert "send" not in caught.value.hint


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


def test_requests_share_runs_of_an_ensemble_where_all_its_parts_share_theirs(
    refusing: Refusing, triton: Triton
) -> None:
    refusing.parts = ("gathers", "here")
    assert not triton.signature("whole", timeout=5).shares_runs
    assert triton.signature("gathers", timeout=5).shares_runs
    refusing.parts = ("gathers", "gathers")
    assert triton.signature("whole", "1", timeout=5).shares_runs


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


SHAPE = "unexpected shape for input 'a' for model 'here'. Expected [3], got [2]."
TYPE = "inference input 'a' data-type is 'FP64', but model 'here' expects 'FP32'"
FEW = (
    "expected 1 inputs but got 0 inputs for model 'here'. Got input(s) [], but missing required "
    "input(s) ['a']. Please provide all required input(s)."
)


@pytest.mark.parametrize(
    ("said", "given", "kind"),
    [
        (f"in ensemble 'chain', [request id: <id_unknown>] {TYPE}", "x", ModelFailed),
        (f"in ensemble 'chain', in ensemble 'inner', {TYPE}", "x", ModelFailed),
        (f"in ensemble 'chain', [request id: <id_unknown>] {FEW}", "xy", ModelFailed),
        # What the caller may leave out, and one of the steps wants.
        (f"in ensemble 'chain', [request id: <id_unknown>] {FEW}", "x", TensorsRefused),
        (f"in ensemble 'chain', [request id: <id_unknown>] {SHAPE}", "xy", TensorsRefused),
        ("in ensemble 'chain', there is no such language", "xy", TensorsRefused),
        (f"[request id: <id_unknown>] {TYPE}", "xy", TensorsRefused),
        (f"[request id: <id_unknown>] {FEW}", "xy", TensorsRefused),
    ],
)
def test_steps_that_do_not_fit_are_not_the_caller_s_fault(
    refusing: Refusing, triton: Triton, said: str, given: str, kind: type[Exception]
) -> None:
    refusing.code, refusing.said = grpc.StatusCode.INVALID_ARGUMENT, said
    with pytest.raises((ModelFailed, TensorsRefused)) as raised:
        triton.infer("chain", dict.fromkeys(given, ARRAYS["x"]), timeout=5)
    assert type(raised.value) is kind
    assert str(raised.value) == said.replace("[request id: <id_unknown>] ", "")


def test_a_batch_of_no_items_never_reaches_triton(refusing: Refusing, triton: Triton) -> None:
    """It would never be answered."""
    with pytest.raises(TensorsRefused, match="a batch of no items"):
        triton.infer("here", {"x": np.zeros((0, 0), np.float32)}, timeout=5)
    assert refusing.left == []


def test_what_a_model_that_is_there_says_is_not_somebody_else_s_fault(
    refusing: Refusing, triton: Triton
) -> None:
    refusing.said = "[request id: <id_unknown>] no such language: xx"
    for code, kind in (
        (grpc.StatusCode.NOT_FOUND, ModelFailed),
        (grpc.StatusCode.UNAVAILABLE, ModelBusy),
    ):
        refusing.code = code
        with pytest.raises(kind, match=r"no such language: xx$"):
            triton.infer("here", ARRAYS, timeout=5)


@pytest.mark.parametrize(
    ("backend", "name", "kind"),
    [
        ("onnxruntime", "here", TooLargeAtOnce),
        ("pytorch", "here", TooLargeAtOnce),
        ("", "chain", TooLargeAtOnce),  # its steps may be of these
        ("python", "here", ModelFailed),
    ],
)
def test_only_this_project_s_backends_say_what_is_too_large_by_unimplemented(
    refusing: Refusing, triton: Triton, backend: str, name: str, kind: type[Exception]
) -> None:
    refusing.code, refusing.backend = grpc.StatusCode.UNIMPLEMENTED, backend
    with pytest.raises(ModelFailed) as raised:
        triton.infer(name, ARRAYS, timeout=5)
    assert type(raised.value) is kind


def test_a_long_message_arrives(refusing: Refusing, triton: Triton) -> None:
    """gRPC takes 16 kB of metadata by default, and calls more than that an outage."""
    refusing.code, refusing.said = grpc.StatusCode.INTERNAL, "q" * 200_000
    with pytest.raises(ModelFailed, match=r"^q{200000}$"):
        triton.infer("here", ARRAYS, timeout=5)


def test_a_model_with_state_is_told_so(refusing: Refusing, triton: Triton) -> None:
    with pytest.raises(TensorsRefused, match="'stateful' keeps state") as raised:
        triton.infer("stateful", ARRAYS, timeout=5)
    assert "sequence_batching" in raised.value.hint
    assert refusing.left == []


def test_a_load_for_which_there_is_no_room_is_told_from_others(
    refusing: Refusing, triton: Triton
) -> None:
    for said, kind in (
        ("Unable to initialize shared memory key. Error: No space left on device", TooLargeAtOnce),
        ("its file cannot be opened", ModelFailed),
    ):
        refusing.said = said
        with pytest.raises(ModelFailed, match=said) as raised:
            triton.load("here", timeout=5)
        assert type(raised.value) is kind


def test_of_a_model_that_triton_keeps_no_word_on_its_log_is_named(
    refusing: Refusing, triton: Triton
) -> None:
    """It refuses a configuration as it reads it, and tells why in its log alone."""
    refusing.said = "failed to load 'here', failed to poll from model repository"
    refusing.index = ModelState("here", "", "")
    with pytest.raises(ModelFailed, match=refusing.said) as raised:
        triton.load("here", timeout=5)
    assert "Triton's log has the reason" in raised.value.hint
    refusing.code = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ModelUnavailable, match=r"'here' is not ready: .*Triton's log has the"):
        triton.infer("here", ARRAYS, timeout=5)
    refusing.index = ModelState("here", "1", "UNAVAILABLE", "its file cannot be opened")
    with pytest.raises(ModelFailed, match=r"^its file cannot be opened$") as raised:
        triton.load("here", timeout=5)
    assert "`dispatcher check`" in raised.value.hint
    with pytest.raises(ModelUnavailable, match=r"'here' is not ready: its file cannot be opened$"):
        triton.infer("here", ARRAYS, timeout=5)


def test_a_model_that_was_unloaded_says_what_loads_it(refusing: Refusing, triton: Triton) -> None:
    refusing.code = grpc.StatusCode.UNAVAILABLE
    refusing.index = ModelState("here", "1", "UNAVAILABLE", "unloaded")
    with pytest.raises(ModelUnavailable, match=r"'here' is not ready: unloaded$") as asked:
        triton.infer("here", ARRAYS, timeout=5)
    assert asked.value.hint == "POST /load_model/here loads it"


def test_how_to_mend_a_model_is_a_hint(refusing: Refusing, triton: Triton) -> None:
    refusing.said = "failed to load 'here'"
    refusing.code = grpc.StatusCode.UNAVAILABLE
    refusing.index = ModelState("here", "1", "UNAVAILABLE", f"it is too large.{TO_MEND}cut it")
    with pytest.raises(ModelUnavailable, match=r"'here' is not ready: it is too large\.$") as asked:
        triton.infer("here", ARRAYS, timeout=5)
    with pytest.raises(ModelFailed, match=r"^it is too large\.$") as loaded:
        triton.load("here", timeout=5)
    assert [raised.value.hint for raised in (asked, loaded)] == ["cut it", "cut it"]


def test_a_text_that_cannot_be_sent_is_not_the_model_s_fault(
    refusing: Refusing, triton: Triton
) -> None:
    refusing.code = grpc.StatusCode.INTERNAL
    with pytest.raises(TensorsRefused, match="input 'x' cannot be sent"):
        triton.infer("here", {"x": np.array(["\ud800"], np.object_)}, timeout=5)
    assert refusing.left == []
    assert triton.take_failing() == set()


def test_a_proxy_of_the_environment_is_not_asked_for_triton(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Docker hands its own configuration on to every container."""
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        server = Triton(f"127.0.0.1:{listener.getsockname()[1]}")
        asked = threading.Thread(target=server.is_ready, kwargs={"timeout": 2})
        asked.start()
        listener.settimeout(2)
        listener.accept()[0].close()
        asked.join()


@pytest.mark.parametrize("unloads", [True, False])
def test_a_model_that_finds_no_room_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, unloads: bool
) -> None:
    server, unloaded = Triton("127.0.0.1:9", scarce=True), list[str]()

    def knock(model: str, inputs: object, *, timeout: float) -> None:
        raise TooLargeAtOnce("no room")

    def unload(model: str, *, timeout: float) -> None:
        unloaded.append(model)
        if not unloads:
            raise DeadlineExceeded("still in use")

    monkeypatch.setattr(server._client, "load_model", lambda *_, **__: None)
    monkeypatch.setattr(server, "signature", lambda *_, **__: Signature(0, backend="onnxruntime"))
    monkeypatch.setattr(server, "knock", knock)
    monkeypatch.setattr(server, "unload", unload)
    with pytest.raises(TooLargeAtOnce, match="no room"):
        server.load("some", timeout=1)
    assert unloaded == ["some"]


def test_a_model_whose_inputs_have_no_room_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton never lets go of such a request, nor of its model."""
    server, done = Triton("127.0.0.1:9", scarce=True), list[str]()
    large = Signature(0, (TensorSpec("x", "FP32", (2**18,)),), backend="onnxruntime")
    small = Signature(0, (TensorSpec("x", "FP32", (-1,)),), backend="onnxruntime")
    monkeypatch.setattr(server._client, "load_model", lambda *_, **__: None)
    monkeypatch.setattr(server, "knock", lambda *_, **__: done.append("knocked"))
    monkeypatch.setattr(server, "unload", lambda *_, **__: done.append("unloaded"))
    monkeypatch.setattr("clients.triton.client.free_bytes", lambda: 2**20 - 1)
    monkeypatch.setattr("clients.triton.client.ROOM_S", 0.1)
    for signature in (large, small):
        monkeypatch.setattr(server, "signature", lambda *_, found=signature, **__: found)
        with pytest.raises(TooLargeAtOnce) if signature is large else nullcontext():
            server.load("some", timeout=1)
    assert done == ["unloaded", "knocked"]
