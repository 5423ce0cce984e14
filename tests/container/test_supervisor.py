"""The supervisor's start and stop, as scripted histories."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from signal import Signals

import pytest

from container.supervisor.http_probe import has_children, listens
from tests.conftest import descendants, wait_for
from tests.support.fake_machine import CONT, INT, KILL, QUIT, TERM, Script, supervise


@pytest.mark.parametrize("number", [TERM, INT, QUIT, Signals.SIGHUP])
def test_a_signal_stops_all_in_reverse_order_and_exits_0(number: Signals) -> None:
    out = supervise(Script(signals={5: [number]}))
    assert out.code == 0
    assert out.script.spawned == ["Triton", "gunicorn", "NGINX"]
    asked = [(pid, n) for _, pid, n in out.script.sent if pid > 0]
    assert asked == [(3, QUIT), (2, TERM), (1, TERM)]
    for pid in (1, 2, 3):  # a program that is stopped hears the signal all the same
        at = out.script.sent.index(next(s for s in out.script.sent if s[1] == pid))
        assert out.script.sent[at + 1][1:] == (-pid, CONT)
    assert out.announced == [1, 2, 3], "asked until it is settled, then no more"
    assert f"{number.name}: finishing what is in flight, then stopping" in out.said
    assert [told["stopping"] for told in out.told][-2:] == [False, True]


def test_each_is_asked_only_when_the_one_before_it_has_ended() -> None:
    out = supervise(Script(signals={5: [TERM]}, stopping=3))
    assert [time for time, pid, _ in out.script.sent if pid > 0] == [5, 8, 11]


def test_what_still_runs_when_the_time_is_up_is_killed_and_said() -> None:
    """The clock starts at the signal, not at the program whose turn it is."""
    out = supervise(Script(signals={5: [TERM]}, stopping=1000))
    assert out.code != 0
    killed = [(t, pid) for t, pid, n in out.script.sent if n == KILL]
    assert killed[:3] == [(30, -1), (30, -2), (30, -3)]
    assert "killing Triton, gunicorn, NGINX" in out.said


def test_one_that_has_nothing_more_to_do_is_not_waited_for() -> None:
    """NGINX has answered everybody: what gunicorn still does is for nobody."""
    out = supervise(Script(signals={5: [TERM]}, slow={2: 1000}), stop_within=3)
    assert out.code == 0
    assert (10, -2, KILL) in out.script.sent
    assert [pid for _, pid, _ in out.script.sent if pid > 0] == [3, 2, 1]


def test_one_that_has_done_its_work_and_does_not_end_is_killed_soon() -> None:
    """Triton has unloaded its last model and hangs: nothing is lost, so that went well."""
    out = supervise(Script(signals={5: [TERM]}, slow={1: 1000}, done_from=10))
    assert out.code == 0
    assert [(t, pid) for t, pid, _ in out.script.sent if pid > 0][-1] == (7, 1)
    assert next((t, pid) for t, pid, n in out.script.sent if (pid, n) == (-1, KILL)) == (12, -1)
    assert not any("killing" in line for line in out.said)
    # It is done before it was asked to end.
    out = supervise(Script(signals={50: [TERM]}, done_from=10))
    assert out.code == 0
    assert out.script.spawned == ["Triton", "gunicorn", "NGINX"]
    assert [n for _, pid, n in out.script.sent if pid == -1 and n == KILL] == [KILL], "at its end"


def test_what_a_process_has_started_is_seen_until_it_is_gone() -> None:
    script = "import subprocess; subprocess.run(['cat']); print(flush=True); input()"
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipe) as parent:  # type: ignore[call-overload]
        wait_for(lambda: has_children(parent.pid), "its child")
        (child,) = descendants(parent.pid)
        os.kill(child, KILL)
        parent.stdout.readline()
        assert not has_children(parent.pid)
        parent.kill()
    assert not has_children(parent.pid)


def test_whether_a_program_listens_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        assert [listens(port) for _ in range(5)] == [True] * 5, "though nobody accepts"
    assert not listens(port)


def test_what_is_not_answered_in_time_is_answered_for_gunicorn_by_nginx() -> None:
    """Which ends as soon as it has; nothing went wrong in the container itself."""
    out = supervise(Script(signals={5: [TERM]}, slow={3: 20}), answers_within=18)
    assert out.code == 0
    assert (24, -2, KILL) in out.script.sent
    assert [(t, pid) for t, pid, _ in out.script.sent if pid > 0] == [(5, 3), (25, 1)]
    assert "NGINX has not stopped in time; killing gunicorn" in out.said


def test_one_that_is_just_being_started_is_asked_until_it_ends() -> None:
    """NGINX forgets a signal that comes before it begins to wait for them."""
    faults = {"Triton": range(1000), "NGINX": range(1000)}
    script = Script(faults=faults, deaths={4: [(1, 7)]}, deaf=frozenset({3}))
    assert supervise(script).code == 7
    asked = [one for one in script.sent if one[1] > 0]
    assert asked == [(4, 3, QUIT), (6, 3, QUIT), (7, 2, TERM)]


def test_a_second_signal_stops_at_once() -> None:
    out = supervise(Script(signals={5: [TERM], 7: [INT]}, stopping=1000))
    assert min(t for t, _, n in out.script.sent if n == KILL) == 7
    out = supervise(Script(signals={5: [TERM, TERM]}, stopping=3))  # the same wish, sent twice
    assert out.code == 0
    assert not any("at once" in line for line in out.said)


def test_the_first_signal_after_it_began_to_stop_by_itself_is_no_second_one() -> None:
    script = Script(signals={9: [TERM], 11: [INT]}, deaths={5: [(1, -9)]}, stopping=1000)
    out = supervise(script, restarts=0)
    assert "SIGTERM: stopping already, finishing what is in flight" in out.said
    assert "SIGINT again: stopping at once" in out.said
    assert min(t for t, pid, n in script.sent if n == KILL and pid != -1) == 11
    assert out.code == 137


def test_a_crash_while_stopping_is_not_exit_code_0() -> None:
    out = supervise(Script(signals={5: [TERM]}, deaths={6: [(1, -11)]}, stopping=3))
    assert out.code == 139
    assert "Triton died while stopping (SIGSEGV)" in out.said
