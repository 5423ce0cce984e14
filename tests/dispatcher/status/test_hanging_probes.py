"""A probe that does not end as others do: it keeps nobody waiting, and is not the last."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.errors import DeadlineExceeded
from dispatcher.status import prober
from tests.conftest import PATIENCE_S, wait_for
from tests.support.probing import Stage


def test_a_probe_that_hangs_keeps_nobody_waiting(stage: Stage) -> None:
    release = threading.Event()
    stage.server.models_run["echo"] = lambda inputs: (release.wait(PATIENCE_S) and {}) or {}
    stage.prober.start()
    wait_for(lambda: (stage.readiness.report("other") or {}).get("ok"), "the probe of the other")
    assert list(stage.prober.due()) == [], "it is under way"
    release.set()
    wait_for(lambda: stage.readiness.reasons() == [], "the probe of the first")


def test_a_round_that_fails_is_followed_by_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, failures = threading.Thread.start, iter([True] * 4)

    def start(thread: threading.Thread) -> None:
        if thread.name != "prober" and next(failures, False):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    stage.prober.start()
    wait_for(lambda: stage.readiness.reasons() == [], "the probe of the required model")


@pytest.fixture(autouse=True)
def every_probe_is_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "KNOCKS", 0)


class Hanging:
    """A model whose client hangs in its example, from `hang` until it is released."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.hangs = stage, False
        self.free, self.asked = threading.Event(), threading.Event()
        self.looks: list[threading.Thread] = []
        stage.server.models_run["echo"] = self.run

    def run(self, inputs: Any) -> Any:
        self.asked.set()
        if self.hangs:
            self.free.wait(PATIENCE_S)
        return {}

    def look(self) -> None:
        """Look as the prober does where it is due, and come back after the time for that."""
        [(model, probe)] = [one for one in self.stage.prober.due() if one[0] == "echo"]
        probe.began = self.stage.time
        look = threading.Thread(target=self.stage.prober.run, args=(model, probe))
        self.asked.clear()
        look.start()
        assert self.asked.wait(PATIENCE_S)
        if self.hangs:
            self.looks.append(look)
            self.stage.time += 14
            self.stage.prober.give_up()
            assert probe.began is not None, "it may take as long"
            self.stage.time += 1
            self.stage.prober.give_up()
            self.stage.prober.list_models()
        else:
            look.join(PATIENCE_S)

    def let_go(self) -> None:
        self.free.set()
        for look in self.looks:
            look.join(PATIENCE_S)


@pytest.fixture
def hanging(stage: Stage) -> Iterator[Hanging]:
    hanging = Hanging(stage)
    hanging.look()
    assert stage.readiness.reasons() == []
    stage.time += 8
    hanging.hangs = True
    yield hanging
    hanging.let_go()


@pytest.mark.parametrize("how", ["it comes back", "it was mended"])
def test_one_that_hangs_keeps_four_threads_at_most_and_gets_a_fresh_worker_once(
    stage: Stage, hanging: Hanging, how: str
) -> None:
    for _ in range(4):
        hanging.look()
        [reason] = stage.readiness.reasons()
        assert "'echo' does not answer: its client has not returned from its own example" in reason
        assert not stage.is_stuck("echo"), "a new start of Triton would not help"
        assert stage.replaced == 1
        stage.time += 0.25
    stage.time += 100
    stage.prober.list_models()
    assert "echo" not in dict(stage.prober.due())
    hanging.hangs = False
    (hanging.let_go if how == "it comes back" else stage.prober.forgive)()
    hanging.look()
    assert stage.readiness.reasons() == []
    hanging.let_go()
    assert stage.readiness.reasons() == [], "what came too late says nothing"


def test_one_that_hangs_from_the_beginning_would_hang_in_a_fresh_worker_too(tmp_path: Path) -> None:
    before = Stage(run_dir=tmp_path)
    before.round()
    before.prober.publish()
    stage = Stage(run_dir=tmp_path)
    assert stage.readiness.reasons() == [], "it answered in the worker before"
    stage.time += 8
    hanging = Hanging(stage)
    hanging.hangs = True
    hanging.look()
    assert stage.replaced == 0
    hanging.hangs = False
    stage.time += 0.25
    hanging.look()
    assert stage.readiness.reasons() == [], "it hung only once"
    hanging.let_go()


@pytest.mark.parametrize("has_process", [True, False])
def test_a_model_that_answers_no_probe_may_be_busy_for_as_long_as_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_process: bool
) -> None:
    """Only then it hangs: its process is ended, and it is loaded again; an answer ends that."""
    stage = Stage(run_dir=tmp_path)
    stage.prober.patience = 54
    ended: list[str] = []
    known = {"echo": [2**22 + 1]} if has_process else {}  # larger than any process id
    monkeypatch.setattr(stage.prober.processes, "by_model", lambda: known)
    monkeypatch.setattr(stage.prober.processes, "end", ended.append)
    stage.round()
    busy = DeadlineExceeded("a request runs for long")
    for answer, turns in ((busy, 5), (dict, 5), (busy, 6 if has_process else 9)):
        stage.server.models_run["echo"] = answer
        for _ in range(turns):
            stage.turn(8)
            assert stage.readiness.reasons() == []
            stage.end_stuck()
    assert not ended
    stage.turn(30)
    assert "'echo' does not answer" in stage.readiness.reasons()[0]
    stage.end_stuck()
    stage.end_stuck()
    assert ended == ["echo"], "once"


def test_a_stopped_process_of_a_model_without_a_class_is_ended_when_a_request_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a model has no probe, and Triton answers each request that the process died."""
    stage = Stage(run_dir=tmp_path)
    with subprocess.Popen(["sleep", "600"]) as stopped, subprocess.Popen(["sleep", "600"]) as other:
        known = {"plain": [stopped.pid, other.pid]}
        monkeypatch.setattr(stage.prober.processes, "by_model", lambda: known)
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        stage.server.failing.add("echo")
        stage.round()
        assert stopped.poll() is None
        stage.server.failing.add("plain")
        stage.round()
        assert stopped.wait(PATIENCE_S) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
