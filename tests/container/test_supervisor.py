"""The supervisor, as scripted histories: what happens, and what it does about it."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from signal import Signals

import pytest

from container.supervisor.http_probe import has_children, listens
from container.supervisor.program import Policy, Program
from container.supervisor.signals import described
from container.supervisor.supervisor import Supervisor
from tests.conftest import wait_for
from tests.support.fake_machine import CONT, INT, KILL, QUIT, TERM, Script, supervise


@pytest.mark.parametrize("number", [TERM, INT, QUIT, Signals.SIGHUP])
def test_a_signal_stops_all_in_reverse_order_and_exits_0(number: Signals) -> None:
    script = Script(signals={5: [number]})
    out = supervise(script)
    assert out.code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX"]
    asked = [(pid, n) for _, pid, n in script.sent if pid > 0]
    assert asked == [(3, QUIT), (2, TERM), (1, TERM)]
    assert out.announced == [1, 2, 3], "asked until it is settled, then no more"
    assert f"{number.name}: finishing what is in flight, then stopping" in out.said
    assert [told["stopping"] for told in out.told][-2:] == [False, True]


def test_a_program_that_is_stopped_hears_the_signal_all_the_same() -> None:
    script = Script(signals={5: [TERM]})
    supervise(script)
    for pid in (1, 2, 3):
        asked = script.sent.index(next(s for s in script.sent if s[1] == pid))
        assert script.sent[asked + 1][1:] == (-pid, CONT)


def test_what_comes_before_a_stop_is_done_once_and_before_the_signal() -> None:
    script = Script(signals={5: [TERM]}, stopping=3)
    assert supervise(script).shut == [(5, True, [CONT])], "one that is stopped would do nothing"


def test_what_comes_before_a_stop_is_done_for_one_that_is_dead_as_well() -> None:
    script = Script(signals={6: [TERM]}, deaths={5: [(3, 1)]})
    ((at, ran, _),) = supervise(script, restarts=3).shut
    assert (at, ran) == (6, False)


def test_each_is_asked_only_when_the_one_before_it_has_ended() -> None:
    script = Script(signals={5: [TERM]}, stopping=3)
    supervise(script)
    assert [time for time, pid, _ in script.sent if pid > 0] == [5, 8, 11]


def test_what_still_runs_when_the_time_is_up_is_killed_and_said() -> None:
    """The clock starts at the signal, not at the program whose turn it is."""
    script = Script(signals={5: [TERM]}, stopping=1000)
    out = supervise(script)
    assert out.code != 0
    assert [(t, pid) for t, pid, n in script.sent if n == KILL][:3] == [
        (30, -1),
        (30, -2),
        (30, -3),
    ]
    assert "killing Triton, gunicorn, NGINX" in out.said


def test_one_that_has_nothing_more_to_do_is_not_waited_for() -> None:
    """NGINX has answered everybody: what gunicorn still does is for nobody."""
    script = Script(signals={5: [TERM]}, slow={2: 1000})
    out = supervise(script, stop_within=3)
    assert out.code == 0
    assert (10, -2, KILL) in script.sent
    assert [pid for _, pid, _ in script.sent if pid > 0] == [3, 2, 1]


def test_one_that_has_done_its_work_and_does_not_end_is_killed_soon() -> None:
    """Triton has unloaded its last model and hangs: nothing is lost, so that went well."""
    script = Script(signals={5: [TERM]}, slow={1: 1000}, done_from=10)
    out = supervise(script)
    assert out.code == 0
    assert [(t, pid) for t, pid, _ in script.sent if pid > 0][-1] == (7, 1)
    assert next((t, pid) for t, pid, n in script.sent if (pid, n) == (-1, KILL)) == (12, -1)
    assert not any("killing" in line for line in out.said)


def test_one_that_is_done_before_it_was_asked_to_end_is_left_alone() -> None:
    script = Script(signals={50: [TERM]}, done_from=10)
    out = supervise(script)
    assert out.code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX"]
    assert [n for _, pid, n in script.sent if pid == -1 and n == KILL] == [KILL], "at its end"


def test_what_a_process_has_started_is_seen_until_it_is_gone() -> None:
    script = "import subprocess; subprocess.run(['cat']); print(flush=True); input()"
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipe) as parent:  # type: ignore[call-overload]
        wait_for(lambda: has_children(parent.pid), 20, "its child")
        (child,) = [p for p in Path("/proc").glob("[0-9]*/stat") if is_child(p, parent.pid)]
        os.kill(int(child.parent.name), KILL)
        parent.stdout.readline()
        assert not has_children(parent.pid)
        parent.kill()
    assert not has_children(parent.pid)


def is_child(stat: Path, pid: int) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[1] == str(pid)
    except OSError:
        return False


def test_whether_a_program_listens_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        assert [listens(port) for _ in range(5)] == [True] * 5, "though nobody accepts"
    assert not listens(port)


def test_what_is_not_answered_in_time_is_answered_for_gunicorn_by_nginx() -> None:
    """Which ends as soon as it has; nothing went wrong in the container itself."""
    script = Script(signals={5: [TERM]}, slow={3: 20})
    out = supervise(script, answers_within=18)
    assert out.code == 0
    assert (24, -2, KILL) in script.sent
    assert [(t, pid) for t, pid, _ in script.sent if pid > 0] == [(5, 3), (25, 1)]
    assert "NGINX does not end in its time; killing gunicorn" in out.said


def test_one_that_is_just_being_started_is_asked_until_it_ends() -> None:
    """NGINX forgets a signal that comes before it begins to wait for them."""
    faults = {"Triton": range(1000), "NGINX": range(1000)}
    script = Script(faults=faults, deaths={4: [(1, 7)]}, deaf=frozenset({3}))
    assert supervise(script).code == 7
    assert [(t, pid, n) for t, pid, n in script.sent if pid > 0] == [
        (4, 3, QUIT),
        (6, 3, QUIT),
        (7, 2, TERM),
    ]


def test_a_second_signal_stops_at_once() -> None:
    script = Script(signals={5: [TERM], 7: [INT]}, stopping=1000)
    supervise(script)
    assert min(t for t, _, n in script.sent if n == KILL) == 7


def test_the_first_signal_after_it_began_to_stop_by_itself_is_no_second_one() -> None:
    script = Script(signals={9: [TERM], 11: [INT]}, deaths={5: [(1, -9)]}, stopping=1000)
    out = supervise(script, restarts=0)
    assert "SIGTERM: stopping already, finishing what is in flight" in out.said
    assert "SIGINT again: stopping at once" in out.said
    assert min(t for t, pid, n in script.sent if n == KILL and pid != -1) == 11
    assert out.code == 137


def test_a_second_signal_that_comes_with_the_first_is_the_same_wish() -> None:
    script = Script(signals={5: [TERM, TERM]}, stopping=3)
    out = supervise(script)
    assert out.code == 0
    assert not any("at once" in line for line in out.said)


def test_a_crash_while_stopping_is_not_exit_code_0() -> None:
    script = Script(signals={5: [TERM]}, deaths={6: [(1, -11)]}, stopping=3)
    out = supervise(script)
    assert out.code == 139
    assert "Triton died while stopping (SIGSEGV)" in out.said


# Deaths


@pytest.mark.parametrize("pid", [1, 2, 3])
def test_a_program_that_dies_is_started_anew_by_itself(pid: int) -> None:
    script = Script(deaths={4: [(pid, -9)]}, signals={9: [TERM]}, lingering=1)
    out = supervise(script)
    name = ["Triton", "gunicorn", "NGINX"][pid - 1]
    assert out.code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX", name]
    assert f"{name} died (SIGKILL): restart 1 of at most 2 within 600 s" in out.said
    assert f"{name} is ready again after 1.0 s" in out.said
    states = [told["programs"][name]["state"] for told in out.told]
    assert [s for s, t in itertools.groupby(states)] == [
        *("starting", "running", "ending", "waiting", "starting", "running")
    ]
    assert out.told[-1]["programs"][name]["starts"] == 2
    reasons = {t["programs"][name]["reason"] for t in out.told if not t["stopping"]}
    assert reasons == {"", "it died (SIGKILL)"}, "the reason is gone when it works again"


def test_what_a_dead_program_leaves_behind_is_gone_before_the_next_start() -> None:
    script = Script(deaths={4: [(1, -9)]}, signals={20: [TERM]}, lingering=3)
    out = supervise(script)
    assert (4, -1, KILL) in script.sent
    assert out.cleaned == [7]
    assert script.spawned_at[-1] == (8, "Triton")


def test_what_never_goes_does_not_keep_the_next_start_for_ever() -> None:
    script = Script(deaths={4: [(1, -9)]}, signals={20: [TERM]}, lingering=1000)
    supervise(script)
    assert script.spawned_at[-1] == (11, "Triton")


def test_what_cannot_be_killed_ends_the_container() -> None:
    """The kernel may never come back from a driver; another machine may do better."""
    script = Script(faults={"Triton": range(20, 1000)}, undying=frozenset({1}))
    out = supervise(script)
    assert out.code == 1
    assert "Triton was killed 60 s ago and is still there: giving up" in out.said
    assert [(at, pid) for at, pid, n in script.sent if n in {QUIT, TERM}][:2] == [(92, 3), (93, 2)]
    assert out.said[-1] == "Triton cannot be killed: leaving without"
    assert script.time < 91 + 25 + 5


def test_what_cannot_be_killed_is_not_waited_for_after_a_signal() -> None:
    script = Script(signals={5: [TERM]}, undying=frozenset({1}))
    assert supervise(script).code == 1
    assert script.time < 5 + 25 + 5


def test_every_restart_waits_longer_and_too_many_end_the_container() -> None:
    """0.5 s, 1 s, 2 s, 4 s and 8 s, in steps of the script's whole seconds."""
    deaths = {at: [(pid, -9)] for at, pid in zip(range(20, 300, 20), range(4, 20), strict=False)}
    script = Script(deaths={4: [(1, -9)], **deaths})
    out = supervise(script, restarts=6)
    assert out.code == 137
    starts = [at for at, name in script.spawned_at if name == "Triton"]
    died = [4, 20, 40, 60, 80, 100]
    assert [s - d for s, d in zip(starts[1:], died, strict=True)] == [1, 1, 2, 4, 8, 8]
    assert "Triton died (SIGKILL) after 6 restarts within 600 s: stopping the others" in out.said
    assert [pid for _, pid, n in script.sent if pid > 0] == [3, 2]


@pytest.mark.parametrize(("died", "expected"), [(3, 3), (-9, 137), (0, 1)])
def test_the_exit_code_of_one_that_dies_too_often_is_never_0(died: int, expected: int) -> None:
    assert supervise(Script(deaths={4: [(2, died)]}), restarts=0).code == expected


def test_restarts_of_long_ago_do_not_count() -> None:
    deaths = {4: [(1, -9)], 10: [(4, -9)], 700: [(5, -9)], 710: [(6, -9)]}
    script = Script(deaths=deaths, signals={720: [TERM]})
    out = supervise(script, restarts=2)
    assert out.code == 0
    assert script.spawned.count("Triton") == 5


@pytest.mark.parametrize(("died", "expected"), [(3, 3), (-9, 137), (0, 1)])
def test_one_that_dies_before_it_ever_worked_ends_the_start(died: int, expected: int) -> None:
    script = Script(faults={"gunicorn": range(100)}, deaths={4: [(2, died)]})
    out = supervise(script)
    assert out.code == expected
    assert f"gunicorn died ({described(died)}): stopping the others" in out.said
    assert out.announced == []


def test_a_signal_without_a_name_is_a_death_like_any_other() -> None:
    out = supervise(Script(deaths={4: [(3, -40)]}, signals={20: [TERM]}), restarts=2)
    assert out.code == 0
    assert "NGINX died (signal 40): restart 1 of at most 2 within 600 s" in out.said


def test_the_first_death_decides() -> None:
    script = Script(deaths={4: [(1, 3), (2, 7)]})
    out = supervise(script, restarts=0)
    assert out.code == 3
    assert len([line for line in out.said if "stopping the others" in line]) == 1


def test_the_end_of_an_orphan_is_nobody_s_business() -> None:
    script = Script(deaths={4: [(99, 1)]}, signals={6: [TERM]})
    out = supervise(script)
    assert out.code == 0
    assert not any("died" in line for line in out.said)


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
    script = Script(deaths={4: [(1, -9)]}, signals={at: [TERM]}, lingering=4)
    out = supervise(script)
    assert out.code == 0
    assert [pid for _, pid, n in script.sent if pid > 0][:2] == [3, 2]


def test_a_signal_that_comes_with_the_kill_of_a_hanging_program_exits_0() -> None:
    script = Script(faults={"Triton": range(20, 33)}, signals={30: [TERM]})
    assert supervise(script).code == 0


def test_nothing_is_left_when_the_supervisor_itself_fails() -> None:
    script = Script()

    def broken(told: object) -> None:
        raise RuntimeError("a bug")

    program = Program("Triton", lambda: ["t"], {}, lambda: "")
    policy = Policy(start_timeout=60, stop_timeout=25)
    with pytest.raises(RuntimeError, match="a bug"):
        Supervisor([program], script, policy, lambda line: None, broken, lambda took: True).run()
    assert (0, -1, KILL) in script.sent
