"""What Triton's errors become. The Triton is a fake: a real one is never late when it is to be."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from clients.errors import (
    BadParameter,
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
from clients.triton import requests
from clients.triton.client import Triton
from tests.conftest import wait_for
from tests.support.refusing_triton import ARRAYS, Refusing, refusing, triton

__all__ = ["refusing", "triton"]  # the fixtures


# The error for a caller when a model that is ready refuses a request with a status, by the meaning
# of the codes: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
BY_STATUS = {
    "CANCELLED": ModelFailed,
    "UNKNOWN": ModelFailed,
    "INVALID_ARGUMENT": TensorsRefused,  # the caller's fault, whatever the state of the server
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "NOT_FOUND": ModelFailed,  # by the model's own code, for the model is there
    "ALREADY_EXISTS": ModelFailed,
    "PERMISSION_DENIED": ModelFailed,
    "RESOURCE_EXHAUSTED": ModelBusy,
    "FAILED_PRECONDITION": ModelFailed,
    "ABORTED": ModelFailed,
    "OUT_OF_RANGE": TensorsRefused,  # the caller's fault as well
    "UNIMPLEMENTED": TooLargeAtOnce,  # from this project's backends
    "INTERNAL": ModelFailed,
    "UNAVAILABLE": ModelBusy,
    "DATA_LOSS": ModelFailed,
    "UNAUTHENTICATED": ModelFailed,
}


def test_every_status_code_is_translated_on_purpose() -> None:
    assert {*BY_STATUS, "OK"} == {code.name for code in grpc.StatusCode}


@pytest.mark.parametrize(("name", "kind"), BY_STATUS.items())
def test_each_status_code_becomes_its_own_error(
    refusing: Refusing, triton: Triton, name: str, kind: type[Exception]
) -> None:
    refusing.code, refusing.said = grpc.StatusCode[name], "the reason"
    with pytest.raises(InferenceError) as raised:
        triton.infer("here", ARRAYS, timeout=60)
    assert type(raised.value) is kind


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
def test_what_there_is_not_is_named(refusing: Refusing, triton: Triton, code: Any) -> None:
    refusing.code = code
    with pytest.raises(UnknownModel, match="no model 'gone'"):
        triton.infer("gone", ARRAYS, timeout=60)
    with pytest.raises(UnknownVersion, match="no version '2'") as caught:
        triton.infer("here", ARRAYS, version="2", timeout=60)
    assert "1" in caught.value.hint


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE])
def test_no_time_to_say_what_there_is_not_is_no_outage(
    refusing: Refusing, triton: Triton, code: Any
) -> None:
    refusing.code, refusing.delay = code, 1.0
    triton.signature("here", timeout=60)  # else nothing is left of a short time for the run
    with pytest.raises(DeadlineExceeded, match=r"'here' did not answer within 0\.200 s"):
        triton.infer("here", ARRAYS, version="2", timeout=0.2)


def test_a_triton_that_is_gone_is_an_outage() -> None:
    with pytest.raises(ModelUnavailable, match="Triton does not answer"):
        Triton("127.0.0.1:1").infer("here", ARRAYS, timeout=60)


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
    answer = triton.infer("here", ARRAYS, outputs=wanted, timeout=60)
    assert list(answer) == expected
    assert [chr(array[0]) for array in answer.values()] == [name[0] for name in expected]


def test_classes_of_texts_never_reach_triton(refusing: Refusing, triton: Triton) -> None:
    """It would end with SIGFPE, and every model with it."""
    refusing.code = grpc.StatusCode.INTERNAL
    with pytest.raises(TensorsRefused, match="`words`, which is BYTES"):
        triton.infer("here", ARRAYS, classes={"scores": 1, "words": 1}, timeout=60)
    with pytest.raises(ModelFailed):  # it was asked
        triton.infer("here", ARRAYS, classes={"scores": 1}, timeout=60)
    refusing.scores = "TYPE_STRING"  # it was loaded again
    with pytest.raises(TensorsRefused, match="`scores`, which is BYTES"):
        triton.infer("here", ARRAYS, classes={"scores": 1}, timeout=60)


def test_a_decoupled_model_is_not_too_large(refusing: Refusing, triton: Triton) -> None:
    refusing.code = grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(TensorsRefused, match="'chatty' is decoupled"):
        triton.infer("chatty", ARRAYS, timeout=60)
    with pytest.raises(TooLargeAtOnce):
        triton.infer("here", ARRAYS, timeout=60)


def test_requests_share_runs_of_an_ensemble_where_all_its_parts_share_theirs(
    refusing: Refusing, triton: Triton
) -> None:
    refusing.parts = ("gathers", "here")
    assert not triton.signature("whole", timeout=60).shares_runs
    assert triton.signature("gathers", timeout=60).shares_runs
    refusing.parts = ("gathers", "gathers")
    assert triton.signature("whole", "1", timeout=60).shares_runs


@pytest.mark.parametrize("name", ["here", "chain"])
def test_a_run_is_not_cancelled_at_its_time_limit(
    refusing: Refusing, triton: Triton, name: str
) -> None:
    """Triton may end with SIGSEGV then. Its caller waits no longer for that."""
    refusing.code = grpc.StatusCode.INVALID_ARGUMENT
    refusing.ends.clear()
    triton.signature(name, timeout=60)  # else nothing is left of a short time for the run
    with pytest.raises(DeadlineExceeded, match=rf"'{name}' did not answer within 0\.1"):
        triton.infer(name, ARRAYS, timeout=0.1)
    wait_for(lambda: refusing.left, "the request")
    assert refusing.left[0] > 30


def test_few_runs_go_on_after_their_time_limits(
    refusing: Refusing, triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_LATE", 2)
    refusing.ends.clear()
    triton.signature("here", timeout=60)  # else nothing is left of a short time for the run
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            triton.infer("here", ARRAYS, timeout=0.1)
    # Busy, as far as /ping is concerned: whether it answers others tells whether it is well.
    with pytest.raises(ModelBusy, match="2 runs of the model 'here' go on after their time"):
        triton.infer("here", ARRAYS, timeout=60)
    wait_for(lambda: len(refusing.left) == 2, "both requests")
    with pytest.raises(DeadlineExceeded):  # another model, on the same channel
        triton.infer("chain", ARRAYS, timeout=0.1)
    refusing.gives = ("words", "scores")
    refusing.ends.set()
    wait_for(lambda: not triton._common.runs._late.total(), "the end of both")
    triton.infer("here", ARRAYS, timeout=60)


def test_a_run_waits_by_a_clock_that_does_not_jump(
    refusing: Refusing, triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.gives, refusing.runs = ("words", "scores"), 0.3
    triton.signature("here", timeout=60)
    hours = itertools.count(time.time(), 3600)
    monkeypatch.setattr(time, "time", lambda: next(hours))
    assert set(triton.infer("here", ARRAYS, timeout=60)) == {"words", "scores"}


@pytest.mark.parametrize("asks", ["infer", "knock"])
def test_a_refused_run_leaves_no_tensors_to_the_garbage_collection(
    refusing: Refusing, triton: Triton, asks: str
) -> None:
    refusing.code = grpc.StatusCode.INVALID_ARGUMENT

    def refused() -> weakref.ref[Any]:
        inputs = {"x": np.zeros((1, 2), np.float32)}
        with suppress(InferenceError):
            getattr(triton, asks)("here", inputs, timeout=60)
        return weakref.ref(inputs["x"])

    refused()
    gc.collect()
    gc.disable()
    try:
        kept = [refused() for _ in range(5)]
        wait_for(lambda: not any(one() is not None for one in kept), "the arrays' end")
    finally:
        gc.enable()


def test_a_channel_whose_thread_cannot_start_is_replaced(
    refusing: Refusing, triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing.gives = ("words", "scores")
    there = {*threading.enumerate()}
    assert triton.infer("here", ARRAYS, timeout=60)
    # gRPC's thread of the channel ends with its last request.
    wait_for(lambda: not any("_run" in one.name for one in {*threading.enumerate()} - there), "it")
    with monkeypatch.context() as none:
        none.setattr(threading.Thread, "start", no_room)
        with pytest.raises(ModelUnavailable, match="could not be sent: can't start new thread"):
            triton.infer("here", ARRAYS, timeout=60)
    for _ in range(3):
        assert triton.infer("here", ARRAYS, timeout=60)
    triton.knock("here", ARRAYS, timeout=60)


def no_room(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


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
        triton.infer("chain", dict.fromkeys(given, ARRAYS["x"]), timeout=60)
    assert type(raised.value) is kind
    assert str(raised.value) == said.replace("[request id: <id_unknown>] ", "")


def test_a_batch_of_no_items_never_reaches_triton(refusing: Refusing, triton: Triton) -> None:
    """It would never be answered."""
    with pytest.raises(TensorsRefused, match="a batch of no items"):
        triton.infer("here", {"x": np.zeros((0, 0), np.float32)}, timeout=60)
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
        with pytest.raises(kind) as raised:
            triton.infer("here", ARRAYS, timeout=60)
        assert raised.value.message.endswith("no such language: xx")


@pytest.mark.parametrize(
    ("backend", "name", "kind"),
    [
        ("onnxruntime", "here", TooLargeAtOnce),
        ("pytorch", "here", ModelFailed),
        ("", "chain", TooLargeAtOnce),  # its steps may be of these
        ("python", "here", ModelFailed),
    ],
)
def test_only_this_project_s_backends_say_what_is_too_large_by_unimplemented(
    refusing: Refusing, triton: Triton, backend: str, name: str, kind: type[Exception]
) -> None:
    refusing.code, refusing.backend = grpc.StatusCode.UNIMPLEMENTED, backend
    with pytest.raises(ModelFailed) as raised:
        triton.infer(name, ARRAYS, timeout=60)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        # The statuses in Triton's own code, in scheduler_utils.cc and infer_request.cc.
        ("UNAVAILABLE", "[request id: <id_unknown>] Exceeds maximum queue size", ModelBusy),
        ("UNAVAILABLE", "in ensemble 'chain', Request timeout expired", ModelBusy),
        ("INVALID_ARGUMENT", SHAPE, TensorsRefused),
        ("INVALID_ARGUMENT", TYPE, TensorsRefused),
        ("INVALID_ARGUMENT", FEW, TensorsRefused),
        ("INVALID_ARGUMENT", f"in ensemble 'chain', {TYPE}", ModelFailed),
        ("INVALID_ARGUMENT", "unexpected inference input 'y' for model 'here'", TensorsRefused),
        ("INVALID_ARGUMENT", "inference request batch-size must be <= 4 for 'x'", TensorsRefused),
        ("INVALID_ARGUMENT", "input byte size mismatch for input 'x' for model", TensorsRefused),
        ("INTERNAL", "it broke: unexpected shape\nTraceback", ModelFailed),
    ],
)
def test_a_stream_which_has_no_status_fails_as_a_single_answer(
    refusing: Refusing, triton: Triton, code: str, said: str, kind: type[Exception]
) -> None:
    refusing.code, refusing.said = grpc.StatusCode[code], said
    for ask in (triton.infer, lambda *given, **kept: next(triton.stream(*given, **kept))):
        with pytest.raises(InferenceError) as raised:
            ask("here", ARRAYS, timeout=60)
        assert (type(raised.value), "Traceback" in raised.value.message) == (kind, False)
        assert triton.take_failing() == ({"here"} if kind is ModelFailed else set())


def test_a_parameter_without_a_value_is_left_out() -> None:
    response = service_pb2.ModelInferResponse()
    response.parameters["empty"].SetInParent()
    response.parameters["full"].int64_param = 0
    assert requests.as_answer([], response).parameters == {"full": 0}


def test_a_long_message_arrives(refusing: Refusing, triton: Triton) -> None:
    """gRPC takes 16 kB of metadata by default, and calls more than that an outage."""
    refusing.code, refusing.said = grpc.StatusCode.INTERNAL, "q" * 200_000
    with pytest.raises(ModelFailed, match=r"^q{200000}$"):
        triton.infer("here", ARRAYS, timeout=60)


def test_a_model_with_state_wants_a_sequence(refusing: Refusing, triton: Triton) -> None:
    with pytest.raises(BadParameter, match="'stateful' keeps state") as raised:
        triton.infer("stateful", ARRAYS, timeout=60)
    assert "NEW_SESSION" in raised.value.hint
    assert refusing.left == []


def test_a_text_that_cannot_be_sent_is_not_the_model_s_fault(
    refusing: Refusing, triton: Triton
) -> None:
    refusing.code = grpc.StatusCode.INTERNAL
    with pytest.raises(TensorsRefused, match="input 'x' cannot be sent"):
        triton.infer("here", {"x": np.array(["\ud800"], np.object_)}, timeout=60)
    assert refusing.left == []
    assert triton.take_failing() == set()
