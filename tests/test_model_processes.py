"""Which processes of models have died, by a /proc of one's own."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from dispatcher.model_processes import Death, ModelProcesses
from tests.test_canary import Stage, triton

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
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (256, "exit code 1")],
)
def test_one_that_died_is_told_once(proc: Proc, status: int, how: str) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "bert")
    proc.put(72, "resnet")
    assert processes.died(TRITON) == {}
    proc.die(71, status)
    assert processes.died(TRITON) == {"bert": Death(how, left=0)}
    assert processes.died(TRITON) == {}


def test_one_that_ended_in_order_is_not_dead(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "bert")
    assert processes.died(TRITON) == {}
    proc.die(71, 0)
    assert processes.died(TRITON) == {}
    proc.go(71)
    assert processes.died(TRITON) == {}


def test_how_many_processes_a_model_has_left_is_told(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "resnet")
    proc.put(72, "resnet")
    assert processes.died(TRITON) == {}
    proc.die(71, signal.SIGKILL)
    assert processes.died(TRITON) == {"resnet": Death("SIGKILL", left=1)}
    proc.die(72, signal.SIGSEGV)
    assert processes.died(TRITON) == {"resnet": Death("SIGSEGV", left=0)}


def test_those_of_another_triton_do_not_count(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "bert", parent=69)
    assert processes.died(TRITON) == {}
    proc.state(71, "Z", signal.SIGKILL, parent=69)
    assert processes.died(TRITON) == {}


def test_one_that_has_not_become_one_yet_is_looked_at_again(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "")
    assert processes.died(TRITON) == {}
    proc.put(71, "bert")
    assert processes.died(TRITON) == {}
    proc.die(71, signal.SIGKILL)
    assert processes.died(TRITON) == {"bert": Death("SIGKILL", left=0)}


def test_a_new_triton_has_new_processes(proc: Proc) -> None:
    processes = ModelProcesses(proc.folder)
    proc.put(71, "bert")
    assert processes.died(TRITON) == {}
    proc.go(71)
    proc.put(81, "bert", parent=80)
    assert processes.died(80) == {}
    proc.state(81, "Z", signal.SIGKILL, parent=80)
    assert processes.died(80) == {"bert": Death("SIGKILL", left=0)}


def test_the_canary_lets_fail_what_was_asked_of_a_dead_model(proc: Proc, stage: Stage) -> None:
    stage.canary.processes = ModelProcesses(proc.folder)
    stage.notice.programs["Triton"]["pid"] = TRITON  # type: ignore[index]
    proc.put(71, "other")
    stage.canary.see_deaths()
    proc.die(71, signal.SIGKILL)
    stage.canary.see_deaths()
    assert stage.server.abandoned == {}, "it was looked at a moment ago"
    stage.time += 1
    stage.canary.see_deaths()
    assert list(stage.server.abandoned) == ["other"]
    reason, within = stage.server.abandoned["other"]
    assert "SIGKILL" in reason
    assert within == 0
    assert stage.canary.maimed("other") == "", "it is dead"


class TestAModelThatHasLostOneOfItsProcesses:
    @staticmethod
    def loses(stage: Stage, proc: Proc, model: str, pid: int = 71) -> None:
        proc.put(pid, model)
        proc.put(90, model)
        stage.time += 1
        stage.canary.see_deaths()
        proc.die(pid, signal.SIGKILL)
        stage.time += 1
        stage.canary.see_deaths()

    @pytest.fixture
    def stage(self, stage: Stage, proc: Proc) -> Stage:
        stage.canary.processes = ModelProcesses(proc.folder)
        stage.notice.programs["Triton"]["pid"] = TRITON  # type: ignore[index]
        return stage

    def test_it_is_asked_on_and_what_is_not_answered_in_time_fails(
        self, stage: Stage, proc: Proc
    ) -> None:
        stage.round()
        self.loses(stage, proc, "echo")
        _, within = stage.server.abandoned["echo"]
        assert within == stage.canary.timeout
        stage.canary.refuse("echo")
        assert not stage.canary.stuck("echo")

    def test_a_new_start_of_triton_mends_it_where_it_is_required(
        self, stage: Stage, proc: Proc
    ) -> None:
        stage.round()
        assert not stage.canary.mendable()
        self.loses(stage, proc, "echo")
        stage.time += stage.canary.interval
        stage.canary.list_models()
        assert stage.round() == ["echo"], "the others answer the example"
        (reason,) = stage.canary.reasons()
        assert "'echo' does not answer all requests" in reason
        assert "lost one of its processes (SIGKILL)" in reason
        assert stage.canary.mendable()
        stage.notice = triton(starts=2)
        stage.canary.list_models()
        stage.round()
        assert stage.canary.reasons() == []
        assert not stage.canary.mendable()

    def test_of_an_optional_model_the_report_tells(self, stage: Stage, proc: Proc) -> None:
        stage.round()
        self.loses(stage, proc, "other")
        assert stage.canary.reasons() == []
        assert not stage.canary.mendable()
        report = stage.canary.report("other") or {}
        assert (report["ok"], "SIGKILL" in str(report["reason"])) == (False, True)

    def test_one_that_is_not_loaded_yet_or_not_any_more_has_lost_nothing(
        self, stage: Stage, proc: Proc
    ) -> None:
        self.loses(stage, proc, "echo")
        assert not stage.canary.mendable(), "it has not answered yet"
        stage.round()
        self.loses(stage, proc, "echo", pid=72)
        assert stage.canary.mendable()
        stage.server.unloaded.add("echo")
        stage.canary.list_models()
        assert not stage.canary.mendable()


@pytest.fixture
def stage() -> Stage:
    return Stage()
