"""Which processes of models have died, by a /proc of one's own."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from clients.errors import DeadlineExceeded, ModelFailed, ModelUnavailable
from clients.triton.server import DIED_LOADING, ModelState
from dispatcher.status.instances import MOST_RELOADS, Death, ModelProcesses
from dispatcher.status.status import UNTRIED
from tests.conftest import wait_for
from tests.support.probing import Stage, triton

TRITON = 70


class Proc:
    """Processes as proc(5) describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()
        self.put(1, "", parent=0)

    def put(self, pid: int, model: str, *, parent: int = TRITON, state: str = "S") -> None:
        (self.folder / str(pid)).mkdir(exist_ok=True)
        self.state(pid, state, parent=parent)
        stub = f"/b/triton_python_backend_stub\0/r/{model}/1/model.onnx\0shm\0{model}_0_0\0"
        (self.folder / str(pid) / "cmdline").write_text(stub if model else "tritonserver\0")

    def state(self, pid: int, state: str, status: int = 0, *, parent: int = TRITON) -> None:
        fields = [state, parent, *range(46), status]  # 52 with the id and the name
        text = f"{pid} (a (strange) name) {' '.join(map(str, fields))}\n"
        (self.folder / str(pid) / "stat").write_text(text)

    def die(self, pid: int, status: int) -> None:
        self.state(pid, "Z", status)
        (self.folder / str(pid) / "cmdline").write_text("")

    def go(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (37, "signal 37"),  # a real-time one, which has no name
        (256, "exit code 1"),
        (0, ""),  # it ended in order, and is not dead
    ],
)
def test_one_that_died_is_told_once_with_how_many_are_left(
    proc: Proc, status: int, how: str
) -> None:
    processes = ModelProcesses(proc.folder)
    for pid, model in ((71, "bert"), (72, "resnet"), (73, "resnet")):
        proc.put(pid, model)
    assert processes.died(TRITON) == {}
    for pid, model, left in ((71, "bert", 0), (72, "resnet", 1), (73, "resnet", 0)):
        proc.die(pid, status)
        assert processes.died(TRITON) == ({model: Death(how, left)} if how else {})
        assert len(processes.by_model().get(model, ())) == left
    proc.go(71)
    assert processes.died(TRITON) == {}


def test_a_process_is_of_the_triton_that_runs_now_and_may_become_a_model_s_late(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "")
    proc.put(72, "bert", parent=69)
    assert processes.died(TRITON) == {}
    proc.put(71, "bert")
    proc.state(72, "Z", signal.SIGKILL, parent=69)
    assert processes.died(TRITON) == {}, "that of another Triton does not count"
    proc.die(71, signal.SIGKILL)
    assert processes.died(TRITON) == {"bert": Death("SIGKILL", left=0)}
    proc.go(71)
    proc.put(81, "bert", parent=80)
    assert processes.died(80) == {}
    proc.state(81, "Z", signal.SIGKILL, parent=80)
    assert processes.died(80) == {"bert": Death("SIGKILL", left=0)}


def watched(stage: Stage, proc: Proc, **models: list[int]) -> Stage:
    """Let a prober see processes of models."""
    stage.prober.processes = ModelProcesses(proc.folder)
    stage.supervisor.programs["Triton"]["pid"] = TRITON  # type: ignore[index]
    for model, pids in models.items():
        for pid in pids:
            proc.put(pid, model)
    stage.see_deaths()
    return stage


def kill(stage: Stage, proc: Proc, *pids: int) -> None:
    """Let processes die, which the prober sees."""
    for pid in pids:
        proc.die(pid, signal.SIGKILL)
    stage.time += 1
    stage.see_deaths()


def test_the_prober_lets_fail_what_was_asked_of_a_dead_model(proc: Proc, stage: Stage) -> None:
    watched(stage, proc, other=[71])
    proc.die(71, signal.SIGKILL)
    stage.see_deaths()
    assert stage.server.abandoned == {}, "it was looked at a moment ago"
    stage.time += 1
    stage.see_deaths()
    assert list(stage.server.abandoned) == ["other"]
    reason, within = stage.server.abandoned["other"]
    assert "SIGKILL" in reason
    assert within == 0


@pytest.mark.parametrize("hung", [(), ("other",)])
def test_one_that_died_while_it_was_loaded_is_loaded_once_more_unless_it_hung(
    stage: Stage, hung: tuple[str, ...]
) -> None:
    stage.server.unloaded.add("other")
    died = ModelState("other", "1", "UNAVAILABLE", f"failed: {DIED_LOADING}")
    reloads = stage.prober.reloads
    for now in (hung, ()):  # somebody may be loading it by then
        reloads.begin(1, {}, [died], now)
    assert list(reloads.lost) == [] or not hung
    wait_for(lambda: not reloads.lost, "the end of the load")
    assert stage.server.unloaded == set(hung)


class TestAModelThatIsLoadedAgain:
    """Beside what is left of it, while others go on; where that fails a restart may help."""

    @pytest.fixture
    def stage(self, stage: Stage, proc: Proc) -> Stage:
        stage.server.reloads_well = True
        stage.server.counted = {"other": 2}
        watched(stage, proc, echo=[71], other=[81, 82])
        stage.round()
        assert stage.readiness.reasons() == []
        stage.time += 1
        return stage

    def test_it_is_well_when_it_answers_after_that(self, stage: Stage, proc: Proc) -> None:
        proc.die(71, signal.SIGKILL)
        stage.see_deaths()
        assert stage.server.reloads == ["echo"]
        assert UNTRIED in stage.readiness.reasons()[0]
        assert not stage.readiness.restart_helps()
        stage.readiness.refuse("echo")
        assert stage.round() == ["echo"]
        assert stage.readiness.reasons() == []

    def test_meanwhile_it_is_refused_and_not_probed_and_nothing_is_restarted(
        self, stage: Stage, proc: Proc, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look would wait behind what others ask."""
        done = []
        probe = stage.prober.probes["echo"]
        probe.began = stage.time  # a look is under way

        def reload(model: str, *, timeout: float) -> None:
            assert "its process died (SIGKILL)" in stage.readiness.reasons()[0]
            assert not stage.readiness.restart_helps()
            with pytest.raises(ModelUnavailable, match="SIGKILL"):
                stage.readiness.refuse("echo")
            stage.readiness.refuse("other")
            stage.time += 1
            assert probe.began is None
            assert stage.round() == [], "what the dead process is given it never gives back"
            done.append(model)
            raise DeadlineExceeded("it takes longer")

        monkeypatch.setattr(stage.server, "reload", reload)
        proc.die(71, signal.SIGKILL)
        stage.prober.note_deaths()
        stage.prober.reloads.begin(1, {"echo": 1})
        wait_for(lambda: bool(done) and not stage.prober.reloads.lost, "the end of it")
        assert stage.readiness.restart_helps(), "it could not be loaded again"
        assert stage.round() == ["echo"]
        assert stage.readiness.reasons() == [], "it answers after all"

    @pytest.mark.parametrize(("pids", "reloads"), [((81,), 1), ((83,), 0)])
    def test_one_that_has_as_many_processes_as_it_needs_is_left_alone(
        self, stage: Stage, proc: Proc, pids: tuple[int, ...], reloads: int
    ) -> None:
        proc.put(83, "other") if 83 in pids else None
        stage.see_deaths()
        kill(stage, proc, *pids)
        assert stage.server.reloads == ["other"] * reloads

    def test_one_that_dies_again_and_again_is_left_to_a_restart(
        self, stage: Stage, proc: Proc, caplog: pytest.LogCaptureFixture
    ) -> None:
        stage.server.counted = {"echo": 3}
        for pid in range(101, 102 + MOST_RELOADS):
            proc.put(pid, "echo")
            proc.go(71) if pid == 101 else None
            stage.time += 1
            stage.see_deaths()
            stage.round()
            kill(stage, proc, pid)
        assert len(stage.server.reloads) == MOST_RELOADS
        assert caplog.text.count("echo goes on with fewer processes") == 1
        assert stage.readiness.restart_helps()


class TestAModelThatHasLostOneOfItsProcesses:
    """And that cannot be loaded again: it is asked on, until it fails its example."""

    @pytest.fixture
    def stage(self, stage: Stage, proc: Proc) -> Stage:
        stage.server.counted = {"echo": 2, "other": 2}
        watched(stage, proc, echo=[71, 72], other=[81, 82])
        stage.round()
        assert stage.readiness.reasons() == []
        return stage

    def test_what_is_not_answered_in_time_fails(self, stage: Stage, proc: Proc) -> None:
        kill(stage, proc, 71)
        _, within = stage.server.abandoned["echo"]
        assert within == stage.prober.timeout
        assert stage.server.reloads == ["echo"]
        assert not stage.is_stuck("echo")
        stage.look()
        assert stage.readiness.reasons() == []

    def test_a_new_start_of_triton_mends_it_where_it_is_required(
        self, stage: Stage, proc: Proc
    ) -> None:
        kill(stage, proc, 71)
        stage.server.models_run["echo"] = ModelFailed("its process is gone")
        stage.look()
        assert stage.is_stuck("echo")
        assert stage.readiness.restart_helps()
        stage.supervisor = triton(starts=2)
        assert not stage.readiness.restart_helps()
        stage.server.models_run["echo"] = dict
        stage.turn()
        assert stage.readiness.reasons() == []

    def test_a_configuration_that_cannot_be_had_hides_no_other_loss(
        self, stage: Stage, proc: Proc
    ) -> None:
        stage.server.counted["echo"] = ModelUnavailable("it is being loaded")
        kill(stage, proc, 71, 81)
        assert stage.server.reloads == ["other"]

    def test_one_that_fails_its_example_from_the_beginning_is_not_mended_by_a_new_start(
        self, proc: Proc
    ) -> None:
        stage = Stage()
        stage.server.counted["echo"] = 2
        stage.server.models_run["echo"] = ModelFailed("it crashes")
        watched(stage, proc, echo=[71, 72])
        stage.round()
        kill(stage, proc, 71)
        assert stage.readiness.reasons() != []
        assert not stage.readiness.restart_helps()

    def test_one_whose_last_process_hangs_is_stuck(self, stage: Stage, proc: Proc) -> None:
        kill(stage, proc, 81)
        stage.server.models_run["other"] = DeadlineExceeded("no answer")
        stage.look("other")
        with pytest.raises(ModelUnavailable, match="'other' does not answer any more"):
            stage.readiness.refuse("other")
        stage.readiness.refuse("echo")
        assert stage.readiness.reasons() == [], "it is not required"
