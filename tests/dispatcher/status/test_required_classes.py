"""What may be required besides models: aliases, and classes that have no model of their own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from clients.base import Client, Environment
from clients.errors import BadPayload, DeadlineExceeded, InferenceError, ModelFailed
from dispatcher.status.prober import KNOCKS
from dispatcher.status.status import UNTRIED
from tests.support.probing import Stage


def test_an_alias_may_be_required(stage: Stage) -> None:
    stage.prober.registry.aliases["another"] = "echo"
    stage.require("another", "third")
    assert stage.readiness.reasons() == ["the required model 'third' is not ready"]
    stage.require("another")
    stage.round()
    assert stage.readiness.reasons() == []
    stage.server.unloaded.add("echo")
    stage.prober.list_models()
    (reason,) = stage.readiness.reasons()
    assert reason.startswith("the required model 'another' is not ready: its model is 'echo'")


class Alone(Client):
    """Asks no model."""

    modelname = "alone"
    example = {"x": 1}
    answer: Any = "well"

    def inference(self, payload: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_required_class_that_asks_no_model_is_ready_once_its_example_works(stage: Stage) -> None:
    stage.prober.registry.clients["alone"] = alone = Alone(Environment(stage.server, Path()))
    stage.require("alone")
    assert UNTRIED in stage.readiness.reasons()[0]
    for _ in range(KNOCKS + 2):
        stage.turn()
        assert stage.readiness.reasons() == []
        stage.time += 8
    assert stage.server.knocks == []
    alone.answer = BadPayload("it has no dictionary")
    stage.round()
    (reason,) = stage.readiness.reasons()
    assert "'alone' does not answer" in reason
    assert "it has no dictionary" in reason
    assert not stage.readiness.restart_helps(), "a new start of Triton would find it as it is"


class Chain(Client):
    """Asks two models, neither of its own name."""

    modelname = "chain"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.infer({}, model="echo")
        self.infer({}, model="other")


class ChainOnEcho(Chain):
    """Asks two, the first of which is its own."""

    model = "echo"


@pytest.mark.parametrize("kind", [Chain, ChainOnEcho])
@pytest.mark.parametrize("fault", [ModelFailed("it fell over"), DeadlineExceeded("no word")])
def test_the_part_of_a_chain_that_died_is_named(
    stage: Stage, kind: type[Client], fault: InferenceError
) -> None:
    """Though the other part answers, the chain included."""
    stage.prober.registry.clients["chain"] = kind(Environment(stage.server, Path()))
    stage.require("chain")
    stage.round()
    assert stage.readiness.reasons() == []
    stage.server.models_run["other"] = fault
    stage.server.counts["echo"] = itertools.count()
    stage.prober.probes["chain"].knocks = KNOCKS  # then its example is due
    for _ in range(2):  # at the first look, one that is late may be busy
        stage.look("chain")
    (reason,) = stage.readiness.reasons()
    assert reason == (
        "the required model 'chain' does not answer: the model 'other', which it asks too: "
        f"{fault.message}"
    )
    assert stage.readiness.restart_helps()
    stage.readiness.refuse("echo")  # it answers those who ask it alone


def test_a_part_that_failed_is_named_before_the_chain(stage: Stage) -> None:
    stage.prober.registry.clients["chain"] = Chain(Environment(stage.server, Path()))
    stage.require("chain", "other")
    stage.server.models_run["other"] = ModelFailed("it fell over")
    stage.round()
    first, second = stage.readiness.reasons()
    assert first == "the required model 'other' does not answer: it fell over"
    assert "'chain'" in second


def test_a_part_that_is_merely_busy_is_no_fault_of_the_chain(stage: Stage) -> None:
    stage.prober.registry.clients["chain"] = Chain(Environment(stage.server, Path()))
    stage.require("chain")
    stage.server.counts["other"] = itertools.count()
    for well in (False, True, True):  # by what it answered since the look before
        stage.server.models_run["other"] = DeadlineExceeded("no word")
        stage.look("chain")
        assert [UNTRIED in reason for reason in stage.readiness.reasons()] == [True] * (not well)
        stage.server.models_run["other"] = dict
        stage.look("other")  # it answers its own probe
