"""The prober: when it probes which models, and what it finds."""

from __future__ import annotations

import itertools
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from clients.base import Environment
from clients.errors import (
    BadPayload,
    DeadlineExceeded,
    InferenceError,
    ModelBusy,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
)
from clients.plugins.registry import Registry
from clients.tensors.signature import zeros
from clients.triton.client import Triton
from clients.triton.server import Signature, TensorSpec
from dispatcher.status.prober import KNOCKS, SOON_S, Prober
from dispatcher.status.status import UNTRIED, Readiness, SupervisorStatus
from tests.conftest import PATIENCE_S, wait_for
from tests.support.fake_triton import FakeTriton
from tests.support.probing import Echo, Stage, triton


def test_nothing_is_known_of_a_model_before_it_answers_its_example(stage: Stage) -> None:
    prober = Prober(["echo"], Registry(), FakeTriton(), 8, 8)
    assert Readiness(triton, prober.status).reasons() == ["Triton was not probed yet"]
    assert UNTRIED in stage.readiness.reasons()[0]
    assert stage.round() == ["echo", "other"]
    assert stage.readiness.reasons() == []
    assert stage.readiness.report("echo") == {"ok": True, "reason": "", "age_s": 0.0}
    stage.time += 3
    assert (stage.readiness.report("echo") or {})["age_s"] == 3.0


def test_a_model_that_is_well_is_knocked_at_and_asked_its_example_now_and_then(
    stage: Stage,
) -> None:
    for _ in range(2 * (KNOCKS + 1)):
        stage.turn()
        assert stage.readiness.reasons() == []
        stage.time += 8
    asked = [call["model"] for call in stage.server.calls]
    assert asked.count("echo") == 2
    assert stage.server.knocks == ["echo"] * 2 * KNOCKS


def test_a_model_that_does_not_hear_the_knock_is_asked_its_example(stage: Stage) -> None:
    stage.round()
    stage.time += 8
    stage.server.models_run["echo"] = ModelFailed("its process is gone")
    assert stage.round() == ["echo"]
    assert "its process is gone" in stage.readiness.reasons()[0]
    assert stage.is_stuck("echo")
    stage.server.models_run["echo"] = dict
    stage.time += 1
    calls = len(stage.server.calls)
    assert stage.round() == ["echo"]
    assert len(stage.server.calls) == calls + 1
    assert stage.readiness.reasons() == []


@pytest.mark.parametrize("error", [ModelBusy("its queue is full"), DeadlineExceeded("no answer")])
def test_one_that_answers_others_is_busy(stage: Stage, error: InferenceError) -> None:
    """By its answers since the look before, whichever worker they came through."""
    stage.server.models_run["echo"] = error
    stage.server.counts["echo"] = itertools.chain([5, 5], itertools.repeat(6))
    for reasons in (1, 0, 1):
        stage.look()
        assert len(stage.readiness.reasons()) == reasons
    assert error.message in stage.readiness.reasons()[0]
    waits_for_others = isinstance(error, ModelBusy)
    assert stage.is_stuck("echo") != waits_for_others


@pytest.mark.parametrize("what", ["a request failed", "Triton was started again", "it is disabled"])
def test_a_knock_is_not_enough_after_a_change(stage: Stage, what: str) -> None:
    stage.round()
    stage.time += 8
    if what == "a request failed":
        stage.server.failing = {"echo"}
    elif what == "it is disabled":
        stage.prober.registry.broken["echo"] = "its file cannot be imported"
    else:
        stage.supervisor = triton(starts=2)
        stage.prober.list_models()
    stage.round()
    assert "echo" not in stage.server.knocks
    assert bool(stage.readiness.reasons()) == (what == "it is disabled")


OWN = "the client of 'echo' fails on its own example: "


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModelFailed("it is gone"), "it is gone"),
        (ModelUnavailable("it is loading"), "it is loading"),
        # By the model, of what its client sends.
        (TensorsRefused("expected [2, 12], got [1, 12]"), "expected [2, 12], got [1, 12]"),
        (BadPayload("it has 8 tokens", hint="shorten it"), f"{OWN}it has 8 tokens (shorten it)"),
        (ValueError("no"), f"{OWN}ValueError: no; the log has the traceback"),
        (KeyboardInterrupt(), f"{OWN}KeyboardInterrupt: ; the log has the traceback"),
        (GeneratorExit(), f"{OWN}GeneratorExit: ; the log has the traceback"),
    ],
)
def test_one_that_does_not_answer_is_named_with_the_reason(
    stage: Stage, error: BaseException, said: str
) -> None:
    def run(_: Any) -> Any:
        raise error

    stage.server.models_run["echo"] = run
    stage.prober.probes["echo"].began = stage.time
    stage.look()
    assert stage.prober.probes["echo"].began is None, "whatever it raises, its probe ends"
    assert stage.readiness.reasons() == [f"the required model 'echo' does not answer: {said}"]
    stage.server.models_run["echo"] = dict
    stage.look()
    assert stage.readiness.reasons() == []


def test_a_client_that_changes_what_it_is_given_has_its_example_again(stage: Stage) -> None:
    class Emptying(Echo):
        example = {"x": 1, "boxes": [{"left": 5}]}

        def inference(self, payload: Any) -> Any:
            payload["boxes"].pop()["left"] += 1
            return payload.pop("x")

    stage.prober.registry.clients["echo"] = Emptying(Environment(stage.server, Path()))
    for _ in range(2):
        stage.look()
        assert stage.prober.probes["echo"].result.reason == ""
    assert Emptying.example == {"x": 1, "boxes": [{"left": 5}]}


def test_when_the_models_are_tried(stage: Stage) -> None:
    """Required ones every 8 s, sooner while they fail; others once, and when requests fail."""
    assert stage.round() == ["echo", "other"]
    stage.time += 7.9
    assert stage.round() == []
    stage.time += 0.1
    assert stage.round() == ["echo"]
    stage.server.models_run["echo"] = ModelFailed("gone")
    stage.time += 8
    assert stage.round() == ["echo"]
    stage.time += 0.25
    assert stage.round() == ["echo"]
    stage.server.models_run["echo"] = dict
    stage.round()
    stage.server.failing = {"other"}
    stage.time += 0.25
    assert "other" in stage.round()
    stage.server.models_run["other"] = ModelFailed("gone")
    stage.server.failing = {"other"}
    stage.time += 0.25
    assert "other" in stage.round()
    stage.time += 7
    assert "other" not in stage.round(), "one that fails by itself is tried at leisure"
    stage.server.models_run["echo"] = ModelFailed("gone")
    calls = len(stage.server.calls)
    for _ in range(1000):
        stage.round()
        stage.time += SOON_S
    assert len(stage.server.calls) < calls + 150, "one that always fails is tried less often"


def test_what_is_unloaded_is_forgotten_and_what_is_loaded_is_tried(stage: Stage) -> None:
    stage.round()
    stage.server.unloaded.add("other")
    stage.prober.list_models()
    assert stage.readiness.report("other") is None
    stage.server.unloaded.clear()
    assert stage.turn() == ["other"]


def test_nothing_is_tried_while_triton_is_away_and_all_is_when_it_is_back(stage: Stage) -> None:
    stage.round()
    stage.supervisor = triton("waiting", 1, "it died (SIGKILL)")
    stage.time += 100
    assert stage.round() == []
    assert stage.readiness.reasons() == ["Triton is being restarted: it died (SIGKILL)"]
    stage.supervisor = triton(starts=2)
    assert stage.readiness.reasons() == ["Triton was not probed yet"]
    assert stage.round() == [], "what was learnt of the one before is void"
    stage.prober.list_models()
    assert UNTRIED in stage.readiness.reasons()[0]
    assert stage.round() == ["echo", "other"]
    assert stage.readiness.reasons() == []


def test_what_keeps_all_models_from_answering_is_said_first(stage: Stage) -> None:
    """A Triton that once listed its models and is silent is to be started again."""
    stage.round()
    assert not stage.readiness.restart_helps()
    stage.server.states = DeadlineExceeded("no answer")
    stage.prober.list_models()
    assert stage.readiness.reasons() == [], "it loads a model, and lists none meanwhile"
    stage.server.ready = False
    stage.prober.list_models()
    assert stage.readiness.reasons() == ["Triton is not ready: no answer"]
    with pytest.raises(ModelUnavailable, match="Triton is not ready"):
        stage.readiness.refuse("other")
    assert stage.readiness.restart_helps()
    stage.supervisor = triton(starts=2)
    stage.prober.list_models()
    assert not stage.readiness.restart_helps(), "this one never spoke: it is starting"
    stage.server.states = None
    stage.prober.list_models()
    assert not stage.readiness.restart_helps()
    stage.time += 20.5
    assert stage.readiness.reasons() == ["the prober has not asked Triton for 20 s"]
    stage.supervisor = SupervisorStatus(stopping=True, programs=stage.supervisor.programs)
    assert stage.readiness.reasons() == ["the container is stopping"]


@pytest.mark.parametrize("error", [ModelFailed("gone"), DeadlineExceeded("it hangs")])
def test_a_model_without_a_client_is_asked_zeros(error: Exception) -> None:
    """Only one that answered them has to: nobody said that it takes them."""
    server = FakeTriton({"plain": DeadlineExceeded("it starts")})
    inputs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("text", "BYTES", (-1,)))
    server.signatures["plain"] = Signature(4, inputs)
    stage = Stage(server, names=["plain"])
    stage.look("plain")
    assert stage.readiness.reasons() == []
    server.models_run["plain"] = dict
    stage.look("plain")
    asked = server.calls[-1]["inputs"]
    assert (asked["x"].shape, asked["x"].dtype.str) == ((1, 3), "<f4")
    assert asked["text"].tolist() == [b""]
    server.models_run["plain"] = error
    stage.look("plain")
    assert "'plain' does not answer" in stage.readiness.reasons()[0]
    assert stage.is_stuck("plain")


def test_a_model_that_fails_on_zeros_is_not_probed_again(tmp_path: Path) -> None:
    """Each probe fails the model, which reports it as one to be probed soon, and fills the log."""
    server = FakeTriton({"plain": ModelFailed("Non-zero status code")})
    server.signatures["plain"] = Signature(4, (TensorSpec("x", "FP32", (-1, 3)),))
    stage = Stage(server, names=["plain"], run_dir=tmp_path)
    for _ in range(20):
        stage.round()
        server.failing.add("plain")
        stage.time += 8
    assert len(server.calls) == 1
    stage.supervisor = triton(starts=2)
    stage.turn()
    assert len(server.calls) == 2, "it may answer after a start"


def test_a_model_of_a_type_that_is_not_served_is_not_known_to_fail(stage: Stage) -> None:
    brain = Signature(0, (TensorSpec("x", "BF16", (1,)),))
    stage.server.signatures["brain"] = brain
    assert not stage.prober.checks.ask("brain", known=False)
    with pytest.raises(TensorsRefused, match="`x` is BF16, which is not served"):
        zeros(brain)


@pytest.mark.parametrize("fault", [OSError(5, "Input/output error"), None])
def test_a_disk_that_is_away_or_hangs_does_not_keep_triton_from_being_asked(
    stage: Stage, fault: OSError | None
) -> None:
    free, began = threading.Event(), []

    def tidy() -> None:
        began.append(1)
        if fault:
            raise fault
        free.wait(PATIENCE_S)

    stage.prober.tidy, stage.time = tidy, 1000.0
    stage.prober.start()
    wait_for(lambda: bool(began), "the tidying")
    wait_for(lambda: stage.prober.found.at == stage.time, "the next list")
    assert stage.prober.found.models
    stage.prober.tidy = lambda: None
    free.set()


def test_nobody_is_asked_while_triton_is_being_started() -> None:
    """A connection that is refused is not tried again for a while, when Triton may be there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Triton(f"127.0.0.1:{listener.getsockname()[1]}", 8 * 2**20)
        supervisor = triton("starting")
        prober = Prober(["echo"], Registry(), server, 8, 8, lambda: supervisor)
        prober.start()
        listener.settimeout(1)
        with pytest.raises(TimeoutError):
            listener.accept()
        supervisor = triton()
        listener.settimeout(PATIENCE_S)
        listener.accept()[0].close()
        supervisor = triton("ending")


def test_a_model_that_takes_files_gets_its_example_instead_of_a_knock_and_twice(
    stage: Stage,
) -> None:
    """A first failure may be that of a caller's file in the same run."""
    stage.server.signatures["echo"] = Signature(4, (TensorSpec("x", "UINT8", (-1, -1)),))
    stage.round()
    fails = iter([True, False])

    def fail_once(_: Any) -> Any:
        if next(fails, True):
            raise ModelFailed("it cannot decode it")
        return {}

    stage.server.models_run["echo"] = fail_once
    stage.time += 8
    assert stage.round() == ["echo"]
    assert (stage.readiness.reasons(), stage.server.knocks) == ([], [])
    stage.look()
    assert stage.readiness.reasons() == [
        "the required model 'echo' does not answer: it cannot decode it"
    ]
