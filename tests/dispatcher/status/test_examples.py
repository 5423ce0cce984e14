"""Which examples the prober asks, of which classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.base import Environment
from clients.errors import BadPayload
from clients.plugins.registry import Registry
from dispatcher.status.checks import ModelChecks
from tests.support.fake_triton import FakeTriton
from tests.support.probing import Echo, Stage


def test_each_of_several_examples_is_asked_once_then_the_first_alone(stage: Stage) -> None:
    """One that is not the first is named."""
    asked = []

    class Several(Echo):
        examples = [{"x": 1}, {"y": 2}]

        def inference(self, payload: Any) -> Any:
            self.infer({})
            asked.append(payload)
            if "y" in payload and len(asked) == 2:
                raise BadPayload("`x` is missing")

    stage.prober.registry.clients["echo"] = Several(Environment(stage.server, Path()))
    stage.round()
    (reason,) = stage.readiness.reasons()
    assert reason.endswith("the client of 'echo' fails on its own examples[1]: `x` is missing")
    stage.look()
    assert (asked[2:], stage.readiness.reasons()) == ([{"x": 1}, {"y": 2}], [])
    stage.server.failing = {"echo"}
    stage.time += 8
    stage.round()
    assert asked[4:] == [{"x": 1}]


def test_no_class_loads_models_by_its_example_where_they_are_loaded_on_demand() -> None:
    environment = Environment(FakeTriton({"echo": dict}), Path())
    boxes = type("Boxes", (Echo,), {"modelname": "boxes", "model": "echo"})
    registry = Registry({"echo": Echo(environment), "boxes": boxes(environment)})
    for classes, expected in ((False, {"echo": "echo"}), (True, {"echo": "echo", "boxes": "echo"})):
        checks = ModelChecks(registry, FakeTriton(), 8, classes)
        assert dict(checks.names({"echo"}, {"echo", "other"})) == expected


@pytest.mark.parametrize("model", ["echo", "nothing"])
def test_a_class_of_another_name_than_its_model_is_asked_its_example_too(
    stage: Stage, caplog: pytest.LogCaptureFixture, model: str
) -> None:
    """Once the model is ready; or where there is no such model, since it may need none."""

    class Boxes(Echo):
        modelname = "boxes"

        def triton_model(self) -> str:
            return model

        def inference(self, payload: Any) -> Any:
            raise ZeroDivisionError("no box")

    stage.prober.registry.clients["boxes"] = Boxes(Environment(stage.server, Path()))
    assert sorted(stage.turn()) == ["boxes", "echo", "other"]
    assert stage.readiness.reasons() == []
    said = "the client of 'boxes' fails on its own example: ZeroDivisionError: no box; the log has"
    assert f"the model boxes does not answer: {said} the traceback" in caplog.text
    stage.time += 8
    assert "boxes" in stage.round()
    assert caplog.text.count("ZeroDivisionError: no box; the log") == 1
    assert caplog.text.count("Traceback") == 1
    del stage.prober.registry.clients["boxes"]
    stage.prober.list_models()
    assert "boxes" not in stage.prober.probes
