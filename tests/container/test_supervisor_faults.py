"""The supervisor, as scripted histories: faults that it finds, and starts that fail."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time

import pytest

from container.serving import Announcement
from container.supervisor.posix import Lookout
from container.supervisor.program import Program
from tests.conftest import wait_for
from tests.support.fake_machine import KILL, TERM, Script, supervise


def test_a_fault_that_stays_is_mended_by_a_new_start() -> None:
    script = Script(faults={"Triton": range(20, 33)}, signals={50: [TERM]})
    out = supervise(script)
    assert out.code == 0
    assert (30, -1, KILL) in script.sent
    assert "Triton does not do its work: it does not answer; killing it" in out.said
    assert script.spawned_at[3:] == [(32, "Triton")]
    assert "Triton is ready again after 1.0 s" in out.said


def test_a_fault_that_passes_is_left_alone() -> None:
    faults = {"gunicorn": range(20, 29), "NGINX": range(30, 39)}
    script = Script(faults=faults, signals={50: [TERM]})
    supervise(script)
    assert script.spawned == ["Triton", "gunicorn", "NGINX"]


def test_one_that_is_stopped_is_one_that_hangs() -> None:
    """The master of gunicorn or NGINX is not missed by anyone, until a worker dies."""
    script = Script(stops={20: 2}, signals={50: [TERM]})
    out = supervise(script)
    assert out.code == 0
    assert "gunicorn does not do its work: it is stopped; killing it" in out.said
    assert script.spawned[3:] == ["gunicorn"]


def test_a_program_that_is_never_ready_ends_the_start() -> None:
    out = supervise(Script(faults={"Triton": range(1000)}))
    assert out.code == 1
    assert out.announced == []
    assert any(
        "Triton is not ready after 61 s: it does not answer; giving up" in s for s in out.said
    )


def test_one_that_is_never_ready_again_is_killed_and_started_once_more() -> None:
    script = Script(deaths={4: [(1, -9)]}, faults={"Triton": range(5, 1000)})
    out = supervise(script, restarts=2)
    assert out.code == 137
    assert script.spawned.count("Triton") == 3
    assert any("is not ready after 61 s: it does not answer; killing it" in s for s in out.said)


@pytest.mark.parametrize(("first", "expected"), [(1, 61), (30, 91), (300, 481)])
def test_a_later_start_may_take_three_times_as_long_as_the_first(first: int, expected: int) -> None:
    script = Script(
        deaths={first + 4: [(1, -9)]},
        faults={"Triton": range(first)},
        signals={first + expected + 8: [TERM]},
    )
    at_first, again = script.faults["Triton"], range(first + 5, 1000)
    script.faults["Triton"] = [*at_first, *again]  # type: ignore[assignment]
    out = supervise(script, start_timeout=480)
    assert f"Triton is not ready after {expected} s: it does not answer; killing it" in out.said


def test_a_later_start_that_has_more_to_do_has_all_the_time() -> None:
    script = Script(deaths={4: [(1, -9)]}, faults={"Triton": range(5, 300)}, signals={310: [TERM]})
    counts = itertools.count()
    out = supervise(script, start_timeout=480, work=lambda: next(counts))
    assert out.code == 0
    assert script.spawned.count("Triton") == 2


def test_a_look_from_which_nobody_comes_back_is_a_fault() -> None:
    script = Script(blind_from=50, signals={90: [TERM]})
    out = supervise(script)
    text = "NGINX does not do its work: nobody came back from looking at it; killing it"
    assert text in out.said
    assert min(t for t, _, n in script.sent if n == KILL) == 81  # 50 + 20 + 10, and more


def test_a_look_that_raises_is_a_fault() -> None:
    looked = threading.Event()

    def fault() -> str:
        if looked.is_set():
            return ""
        looked.set()
        raise ValueError("not HTTP")

    lookout = Lookout(Program("Triton", lambda: ["t"], {}, fault))
    assert looked.wait(5)
    wait_for(lambda: lookout.look.fault == "", 5, "the next look")


def test_the_supervisor_does_not_wait_for_the_first_ping() -> None:
    """A worker may be stopped meanwhile; signals are heard all the same."""
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        announcement = Announcement(server.getsockname()[1], said.append)
        began = time.monotonic()
        assert not announcement(7)
        assert time.monotonic() - began < 2, "a look may take 4 s"
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        wait_for(lambda: announcement(8), 10, "the end of it")
        connection.close()
    assert [re.sub(r"\d+", "0", line) for line in said] == [
        "ready after 0.0 s: POST http://0.0.0.0:0/invocations"
    ]


def test_one_that_cannot_be_started_again_is_tried_later() -> None:
    script = Script(deaths={4: [(2, -9)]}, no_memory=range(5, 7), signals={20: [TERM]})
    out = supervise(script, restarts=4)
    assert out.code == 0
    assert script.spawned == ["Triton", "gunicorn", "NGINX", "gunicorn"]
    reason = "cannot be started ([Errno 12] Cannot allocate memory)"
    assert f"gunicorn {reason}: restart 2 of at most 4 within 600 s" in out.said
    assert f"it {reason}" in {told["programs"]["gunicorn"]["reason"] for told in out.told}
    assert "gunicorn is ready again after 1.0 s" in out.said


def test_one_that_cannot_be_started_again_and_again_ends_the_container() -> None:
    script = Script(deaths={4: [(2, -9)]}, no_memory=range(5, 1000))
    out = supervise(script)
    assert out.code == 1
    assert any("gunicorn cannot be started" in s and "after 2 restarts" in s for s in out.said)


def test_one_that_cannot_be_started_at_all_ends_the_start() -> None:
    out = supervise(Script(no_memory=range(1000)))
    assert out.code == 1
    assert "Triton cannot be started ([Errno 12] Cannot allocate memory): stopping" in out.said[0]
