"""What the supervisor does about deaths and faults, as scripted histories."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from container.supervisor.posix import ProbeThread
from container.supervisor.program import Policy, Program
from container.supervisor.supervisor import Supervisor
from dispatcher.exit_codes import in_words
from tests.conftest import PATIENCE_S, wait_for
from tests.support.fake_machine import KILL, QUIT, TERM, Script, supervise


@pytest.mark.parametrize("pid", [1, 2, 3])
def test_a_program_that_dies_is_started_anew_by_itself(pid: int) -> None:
    out = supervise(Script(deaths={4: [(pid, -9)]}, signals={9: [TERM]}, lingering=1))
    name = ["Triton", "gunicorn", "NGINX"][pid - 1]
    assert out.code == 0
    assert out.script.spawned == ["Triton", "gunicorn", "NGINX", name]
    assert f"{name} is ready again after 1.0 s" in out.said
    died = f"{name} died (SIGKILL): restart 1 of at most 2 within 600 s"
    assert out.levels.pop(died) == "error", "which an operator has to look at"
    assert set(out.levels.values()) == {"info"}
    states = [told["programs"][name]["state"] for told in out.told]
    changes = " ".join(state for state, _ in itertools.groupby(states))
    assert changes == "starting running ending waiting starting running"
    assert out.told[-1]["programs"][name]["starts"] == 2
    reasons = {t["programs"][name]["reason"] for t in out.told if not t["stopping"]}
    assert reasons == {"", "it died (SIGKILL)"}, "the reason is gone when it works again"


@pytest.mark.parametrize(("lingering", "cleaned"), [(3, 7), (1000, 10)])
def test_what_a_dead_program_leaves_behind_is_gone_or_given_up_before_the_next_start(
    lingering: int, cleaned: int
) -> None:
    out = supervise(Script(deaths={4: [(1, -9)]}, signals={20: [TERM]}, lingering=lingering))
    assert (4, -1, KILL) in out.script.sent
    assert out.cleaned == [cleaned]
    assert out.script.spawned_at[-1] == (cleaned + 1, "Triton")


def test_what_cannot_be_killed_ends_the_container() -> None:
    """The kernel may never come back from a driver; another machine may do better."""
    script = Script(faults={"Triton": range(20, 1000)}, undying=frozenset({1}))
    out = supervise(script)
    assert out.code == 1
    assert "Triton was killed 60 s ago and is still there: stopping the others" in out.said
    assert [(at, pid) for at, pid, n in script.sent if n in {QUIT, TERM}][:2] == [(92, 3), (93, 2)]
    assert out.said[-2:] == [
        "Triton cannot be killed: exiting without waiting longer",
        "stopped, with exit code 1: Triton was killed 60 s ago and is still there",
    ]
    assert script.time < 91 + 25 + 5
    script = Script(signals={5: [TERM]}, undying=frozenset({1}))
    assert supervise(script).code == 1
    assert script.time < 5 + 25 + 5


def test_every_restart_waits_longer_and_too_many_end_the_container() -> None:
    """0.5 s, 1 s, 2 s, 4 s and 8 s, in steps of the script's whole seconds."""
    deaths = {at: [(pid, -9)] for at, pid in zip(range(20, 300, 20), range(4, 20), strict=False)}
    out = supervise(Script(deaths={4: [(1, -9)], **deaths}), restarts=6)
    assert out.code == 137
    starts = [at for at, name in out.script.spawned_at if name == "Triton"]
    died = [4, 20, 40, 60, 80, 100]
    assert [s - d for s, d in zip(starts[1:], died, strict=True)] == [1, 1, 2, 4, 8, 8]
    assert "Triton died (SIGKILL) after 6 restarts within 600 s: stopping the others" in out.said
    assert [pid for _, pid, n in out.script.sent if pid > 0] == [3, 2]


def test_restarts_of_long_ago_do_not_count() -> None:
    deaths = {4: [(1, -9)], 10: [(4, -9)], 700: [(5, -9)], 710: [(6, -9)]}
    out = supervise(Script(deaths=deaths, signals={720: [TERM]}), restarts=2)
    assert out.code == 0
    assert out.script.spawned.count("Triton") == 5


@pytest.mark.parametrize(("died", "expected"), [(3, 3), (255, 255), (0, 1)])
def test_the_exit_code_of_a_death_that_ends_the_container_is_never_0(
    died: int, expected: int
) -> None:
    """Of one that dies before it ever worked, and of one that dies too often."""
    out = supervise(Script(faults={"gunicorn": range(100)}, deaths={4: [(2, died)]}))
    assert out.code == expected
    assert f"gunicorn died ({in_words(died)}): stopping the others" in out.said
    assert out.announced == []
    assert supervise(Script(deaths={4: [(2, died)]}), restarts=0).code == expected


def test_one_that_crashes_before_it_ever_worked_is_started_once_more() -> None:
    faults = {"gunicorn": range(100)}
    out = supervise(Script(faults=faults, deaths={4: [(2, -6)], 9: [(4, -6)]}))
    assert (out.code, out.announced) == (134, [])
    died = [line for line in out.said if line.startswith("gunicorn died")]
    assert [line.partition(": ")[2].partition(" of ")[0] for line in died] == [
        "restart 1",
        "stopping the others",
    ]
    out = supervise(
        Script(faults={"gunicorn": range(6)}, deaths={4: [(2, -6)]}, signals={30: [TERM]})
    )
    assert (out.code, bool(out.announced)) == (0, True)


def test_deaths_by_a_signal_without_a_name_and_of_orphans() -> None:
    out = supervise(Script(deaths={4: [(3, -40), (99, 1)]}, signals={20: [TERM]}), restarts=2)
    assert out.code == 0
    (died,) = [line for line in out.said if "died" in line]
    assert died == "NGINX died (signal 40): restart 1 of at most 2 within 600 s"


def test_the_first_death_decides() -> None:
    out = supervise(Script(deaths={4: [(1, 3), (2, 7)]}), restarts=0)
    assert out.code == 3
    assert len([line for line in out.said if "stopping the others" in line]) == 1


# Faults


def test_a_fault_that_stays_is_mended_by_a_new_start() -> None:
    out = supervise(Script(faults={"Triton": range(20, 33)}, signals={50: [TERM]}))
    assert out.code == 0
    assert (30, -1, KILL) in out.script.sent
    assert "Triton fails its probe: it does not answer; killing it" in out.said
    assert out.script.spawned_at[3:] == [(32, "Triton")]
    assert "Triton is ready again after 1.0 s" in out.said


def test_a_fault_that_passes_is_left_alone() -> None:
    faults = {"gunicorn": range(20, 29), "NGINX": range(30, 39)}
    out = supervise(Script(faults=faults, signals={50: [TERM]}))
    assert out.script.spawned == ["Triton", "gunicorn", "NGINX"]


def test_one_that_is_stopped_is_one_that_hangs() -> None:
    """The master of gunicorn or NGINX is not missed by anyone, until a worker dies."""
    out = supervise(Script(stops={20: 2}, signals={50: [TERM]}))
    assert out.code == 0
    assert "gunicorn fails its probe: it is stopped; killing it" in out.said
    assert out.script.spawned[3:] == ["gunicorn"]


def test_a_program_that_is_never_ready_ends_the_start_and_later_is_started_once_more() -> None:
    late = "Triton is not ready after 61 s: it does not answer"
    out = supervise(Script(faults={"Triton": range(1000)}))
    assert (out.code, out.announced) == (1, [])
    assert any(late + ": stopping the others" in line for line in out.said)
    out = supervise(Script(deaths={4: [(1, -9)]}, faults={"Triton": range(5, 1000)}), restarts=2)
    assert out.code == 137
    assert out.script.spawned.count("Triton") == 3
    assert any(late + "; killing it" in line for line in out.said)


def test_a_probe_that_does_not_return_is_a_fault() -> None:
    out = supervise(Script(blind_from=50, signals={90: [TERM]}))
    text = "NGINX fails its probe: its probe does not return; killing it"
    assert text in out.said
    assert min(t for t, _, n in out.script.sent if n == KILL) == 81  # 50 + 20 + 10, and more


def test_a_probe_that_raises_is_a_fault() -> None:
    probed = threading.Event()

    def fault() -> str:
        if probed.is_set():
            return ""
        probed.set()
        raise ValueError("not HTTP")

    probe = ProbeThread(Program("Triton", lambda: ["t"], {}, fault))
    assert probed.wait(PATIENCE_S)
    wait_for(lambda: probe.result.fault == "", "the next probe")


def test_one_that_cannot_be_started_again_is_tried_later() -> None:
    script = Script(deaths={4: [(2, -9)]}, no_memory=range(5, 7), signals={20: [TERM]})
    out = supervise(script, restarts=4)
    assert out.code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX", "gunicorn"]
    reason = "cannot be started ([Errno 12] Cannot allocate memory)"
    assert f"gunicorn {reason}: restart 2 of at most 4 within 600 s" in out.said
    assert f"it {reason}" in {told["programs"]["gunicorn"]["reason"] for told in out.told}
    assert "gunicorn is ready again after 1.0 s" in out.said


def test_one_that_cannot_be_started_ends_the_container() -> None:
    """At all, and again and again."""
    reason = "cannot be started ([Errno 12] Cannot allocate memory)"
    for script, said in (
        (Script(no_memory=range(1000)), f"Triton {reason}: stopping"),
        (
            Script(deaths={4: [(2, -9)]}, no_memory=range(5, 1000)),
            f"gunicorn {reason} after 2 restarts",
        ),
    ):
        out = supervise(script)
        assert out.code == 1
        assert any(said in line for line in out.said)


ENDS_WHEN_IT_RUNS = """
import os, runpy, signal
from container import serving
serving.run = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
"""


ENDS_WHEN_IT_IMPORTS = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "container.serving":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("when", [ENDS_WHEN_IT_RUNS, ENDS_WHEN_IT_IMPORTS], ids=["run", "import"])
def test_a_signal_that_comes_before_anything_was_started_ends_it(tmp_path: Path, when: str) -> None:
    """As process 1 of a container there is nobody to end it but itself."""
    code = f"{when}runpy.run_module('container', run_name='__main__')"
    environment = {**os.environ, "RUN_DIR": str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr


# Signals while something is being restarted


@pytest.mark.parametrize("at", [5, 6, 7, 8, 9, 10])
def test_a_signal_during_a_restart_ends_all_in_order_and_exits_0(at: int) -> None:
    """And one that comes with the kill of a program that hangs."""
    hanging = Script(faults={"Triton": range(20, 33)}, signals={30: [TERM]})
    assert supervise(hanging).code == 0
    out = supervise(Script(deaths={4: [(1, -9)]}, signals={at: [TERM]}, lingering=4))
    assert out.code == 0
    assert [pid for _, pid, n in out.script.sent if pid > 0][:2] == [3, 2]


def test_nothing_is_left_when_the_supervisor_itself_fails() -> None:
    script = Script()

    def broken(told: object) -> None:
        raise RuntimeError("a bug")

    program = Program("Triton", lambda: ["t"], {}, lambda: "")
    policy = Policy(start_timeout=60, stop_timeout=25)
    with pytest.raises(RuntimeError, match="a bug"):
        Supervisor([program], script, policy, lambda line: None, broken, lambda took: True).run()
    assert (0, -1, KILL) in script.sent
