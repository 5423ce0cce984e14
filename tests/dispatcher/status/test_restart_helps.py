"""When a restart of Triton may help, and which requests are refused until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import (
    DeadlineExceeded,
    ModelFailed,
    ModelUnavailable,
    TensorsRefused,
    TooLargeAtOnce,
)
from tests.support.fake_triton import FakeTriton
from tests.support.probing import Stage, triton


def test_what_was_found_out_before_a_start_of_triton_refuses_nobody_after_it(stage: Stage) -> None:
    stage.server.states, stage.server.ready = ModelUnavailable("connection refused"), False
    stage.prober.list_models()
    with pytest.raises(ModelUnavailable, match="connection refused"):
        stage.readiness.refuse("echo")
    stage.supervisor = triton(starts=2)
    stage.readiness.refuse("echo")


def failing(stage: Stage, error: Exception, model: str = "echo") -> bool:
    """Whether a model is stuck that answered before and now fails in this way."""
    stage.round()
    stage.server.models_run[model] = error
    stage.look(model)
    return stage.is_stuck(model)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModelFailed("its process is gone"), True),
        (DeadlineExceeded("it hangs"), True),
        (ModelUnavailable("it was unloaded"), False),
        (TooLargeAtOnce("no room in shared memory"), False),
        (TensorsRefused("its client is wrong"), False),
        (ValueError("its client is broken"), False),
    ],
)
def test_a_model_that_answered_and_does_not_any_more_is_stuck(
    stage: Stage, error: Exception, expected: bool
) -> None:
    assert failing(stage, error) == expected
    if expected:
        with pytest.raises(ModelUnavailable, match="'echo' does not answer any more"):
            stage.readiness.refuse("echo")
    else:
        stage.readiness.refuse("echo")
    stage.readiness.refuse("other")


@pytest.mark.parametrize("first", [1, 3])
def test_one_that_never_answered_is_not_stuck(stage: Stage, first: int) -> None:
    """A bad file, or a wrong example: another start would find it as it is."""
    stage.supervisor = triton(starts=first)
    stage.prober.list_models()
    stage.server.models_run["echo"] = ModelFailed("gone")
    stage.round()
    assert not stage.is_stuck("echo")
    assert stage.readiness.reasons() != []
    stage.readiness.refuse("echo")


def test_one_that_fails_since_a_new_start_has_one_more(stage: Stage) -> None:
    """Its process may have been killed before it was asked for the first time."""
    assert failing(stage, ModelFailed("gone"))
    stuck = []
    for starts in (2, 3, 4):
        stage.supervisor = triton(starts=starts)
        stage.prober.list_models()
        assert not stage.is_stuck("echo"), "it was not probed yet"
        stage.round()
        stuck.append(stage.is_stuck("echo"))
    assert stuck == [True, False, False]


@pytest.mark.parametrize("name", ["echo", "plain"])  # the second has no client
@pytest.mark.parametrize(("starts", "stuck"), [(1, True), (2, True), (3, False)])
def test_what_answered_is_known_to_web_workers_that_come_later(
    tmp_path: Path, starts: int, stuck: bool, name: str
) -> None:
    """One that was killed is no reason to leave a model hanging."""
    server = FakeTriton({name: dict})
    first = Stage(server, names=[name], run_dir=tmp_path)
    first.look(name)
    assert first.readiness.reasons() == []
    supervisor = triton(starts=starts)
    later = Stage(server, supervisor, names=[name], run_dir=tmp_path, time=200)
    server.models_run[name] = DeadlineExceeded("it hangs")
    later.round()
    assert later.is_stuck(name) == stuck


def test_no_room_to_publish_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(run_dir=tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    stage.round()
    assert stage.readiness.reasons() == []
    assert failing(stage, DeadlineExceeded("it hangs"))
