"""One web worker probes for all: which one, what it tells the others, and who comes after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from clients.errors import DeadlineExceeded, ModelFailed, ModelUnavailable
from clients.plugins.registry import Registry
from dispatcher.settings import FAILING, READINESS
from dispatcher.status.instances import Death, ModelProcesses
from dispatcher.status.prober import LOCK, Prober
from dispatcher.status.status import Readiness, Status
from dispatcher.status.status_file import StatusWriter
from tests.conftest import wait_for
from tests.dispatcher.status.test_instances import TRITON, Proc
from tests.support.fake_triton import FakeTriton
from tests.support.probing import Stage, triton

HOLDS = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
child = os.fork()  # as a class may
if child:
    print(child, flush=True)
time.sleep(600)
"""


@contextmanager
def elected(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the lock; what it has forked lives on."""
    command = [sys.executable, "-c", HOLDS, str(run_dir / LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        child = int(holder.stdout.readline())
        try:
            yield holder
        finally:
            os.kill(child, signal.SIGKILL)
            holder.kill()


@pytest.fixture
def follower(tmp_path: Path) -> Prober:
    """A worker among others; the status that another published says that `echo` is well."""
    (tmp_path / FAILING).mkdir()
    stage = Stage(run_dir=tmp_path)
    stage.round()
    assert stage.readiness.reasons() == []
    stage.prober.leaving = lambda: True
    assert not stage.prober.is_elected()
    server = FakeTriton({"echo": dict, "other": dict})
    return Prober(["echo"], Registry(), server, 8, 8, triton, clock=lambda: 100.0, run_dir=tmp_path)


def readiness(worker: Prober) -> Readiness:
    return Readiness(worker.supervisor, worker.status, worker.clock)


def test_the_others_say_what_the_elected_worker_found_and_ask_no_model(follower: Prober) -> None:
    assert follower.run_dir
    with elected(follower.run_dir):
        assert not follower.is_elected()
        follower._step()
        assert readiness(follower).reasons() == []
        assert (readiness(follower).report("echo") or {})["ok"] is True
        read = Status.of_json(asdict(follower.status()))
        gone = replace(read, at=80.0, reasons=["gone"], refused={"echo": "gone"}, restart="gone")
        StatusWriter(follower.run_dir / READINESS).write(asdict(gone))
        wait_for(lambda: readiness(follower).reasons() == ["gone"], "the new status")
        assert readiness(follower).restart_helps()
        with pytest.raises(ModelUnavailable, match="'echo' does not answer any more: gone"):
            readiness(follower).refuse("echo")
        follower.clock = lambda: 100.5
        assert readiness(follower).reasons() == ["the prober has not asked Triton for 20 s"]
        server = follower.server
        assert isinstance(server, FakeTriton)
        assert (server.calls, server.knocks) == ([], [])


def test_the_next_worker_takes_over_with_what_was_known(follower: Prober) -> None:
    """Also where a process lives on that a class of the one before has forked."""
    assert follower.run_dir
    with elected(follower.run_dir) as holder:
        follower._step()
        assert not follower.is_elected()
        holder.kill()
        holder.wait()
        wait_for(follower.is_elected, "the election")
        assert readiness(follower).reasons() == [], "no reason says that it was not probed yet"
    follower.server.models_run["echo"] = DeadlineExceeded("it hangs")  # type: ignore[attr-defined]
    follower.run("echo", follower.probes["echo"])
    follower.publish()
    assert "it hangs" in readiness(follower).reasons()[0]
    assert readiness(follower).restart_helps(), "it answered in the worker before"


def test_each_worker_lets_fail_what_it_has_asked_of_a_dead_process(follower: Prober) -> None:
    assert follower.run_dir
    writer = StatusWriter(follower.run_dir / READINESS)
    deaths = {"echo": Death("SIGKILL", 0, at=100.5), "other": Death("SIGSEGV", 1, at=99.0)}
    status = Status(at=100.0, triton_starts=1, deaths=deaths)
    server = follower.server
    assert isinstance(server, FakeTriton)
    with elected(follower.run_dir):
        for at, expected in ((100.5, {"echo": 0.0}), (101.0, {"echo": 0.0, "other": 8})):
            deaths["other"] = replace(deaths["other"], at=99.0 if at < 101 else at)
            writer.write(asdict(status))

            def within(expected: dict[str, float] = expected) -> bool:
                follower._step()
                return {name: left for name, (_, left) in server.abandoned.items()} == expected

            wait_for(within, "the requests that fail")
        assert "SIGSEGV" in server.abandoned["other"][0]
        server.abandoned.clear()
        follower._step()
        assert server.abandoned == {}, "once for each death"


def test_a_model_that_failed_a_request_of_any_worker_is_probed_soon(follower: Prober) -> None:
    assert follower.run_dir
    stage = Stage(run_dir=follower.run_dir)
    stage.round()
    assert stage.round() == []
    stage.time += 1
    follower.server.failing = {"other"}  # type: ignore[attr-defined]
    follower.report_failures()
    stage.server.models_run["other"] = ModelFailed("gone")
    assert stage.round() == ["other"]
    assert stage.is_stuck("other")
    assert list((follower.run_dir / FAILING).iterdir()) == []


def test_a_process_that_died_with_the_worker_that_probes_is_found_by_the_next(
    tmp_path: Path,
) -> None:
    """A dead process does not tell its model any more."""
    run_dir, folder = tmp_path / "run", tmp_path / "proc"
    run_dir.mkdir()
    folder.mkdir()
    proc = Proc(folder)
    first = Stage(run_dir=run_dir)
    first.prober.processes = ModelProcesses(proc.folder)
    first.supervisor.programs["Triton"]["pid"] = TRITON  # type: ignore[index]
    proc.put(71, "other")
    first.see_deaths()
    first.prober.leaving = lambda: True
    assert not first.prober.is_elected()
    proc.die(71, signal.SIGKILL)
    second = Stage(first.server, first.supervisor, run_dir=run_dir, proc=proc.folder)
    second.time += 1
    second.see_deaths()
    assert "SIGKILL" in second.server.abandoned["other"][0]
