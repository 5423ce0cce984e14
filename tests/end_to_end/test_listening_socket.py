"""The socket on which NGINX listens, and what becomes of those who are in it at the end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from container.programs import listening_socket as module
from container.programs.listening_socket import ListeningSocket
from container.programs.nginx import ALIVE, nginx_program
from container.supervisor.program import Program
from dispatcher.settings import read_settings
from tests.conftest import descendants, free_ports, wait_for
from tests.support.front import NGINX

CALLERS = 20


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def shared(port: int) -> Iterator[ListeningSocket]:
    with closing(ListeningSocket(port)) as shared:
        yield shared


@pytest.fixture
def program(shared: ListeningSocket, port: int, tmp_path: Path) -> Program:
    settings = read_settings({"SAGEMAKER_BIND_TO_PORT": str(port)})
    return nginx_program(settings, tmp_path, NGINX, shared)


def started(program: Program) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        program.command(), env=dict(program.environment), pass_fds=program.files
    )


def test_who_is_in_is_waited_for(shared: ListeningSocket, port: int) -> None:
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(CALLERS)]
    assert shared.waiting() == CALLERS
    with closing(socket.socket(fileno=os.dup(shared.fileno()))) as listener:
        shutting = threading.Thread(target=shared.shut, kwargs={"accepts": True})
        shutting.start()
        for left in reversed(range(CALLERS)):
            assert shutting.is_alive()
            assert shared.waiting() == left + 1
            accepted, _ = listener.accept()
            accepted.close()
    shutting.join(1)
    assert not shutting.is_alive()
    for caller in callers:
        assert caller.recv(1) == b""  # closed in order, not reset
        caller.close()


def test_who_is_never_accepted_is_not_waited_for_for_ever(
    shared: ListeningSocket, port: int
) -> None:
    with closing(socket.create_connection(("127.0.0.1", port))):
        began = time.monotonic()
        shared.shut(accepts=True)
        assert 1 <= time.monotonic() - began < 3


def test_who_comes_when_it_is_shut_is_not_let_in_and_then_refused(
    shared: ListeningSocket, port: int
) -> None:
    with closing(socket.create_connection(("127.0.0.1", port))), ThreadPoolExecutor() as pool:
        shutting = pool.submit(
            shared.shut, accepts=True
        )  # which takes a second: he is not accepted
        time.sleep(0.3)
        late = pool.submit(socket.create_connection, ("127.0.0.1", port), 10)
        time.sleep(0.3)
        assert not late.done()
        assert shared.waiting() == 1
        shutting.result()
        assert isinstance(late.exception(10), ConnectionRefusedError)


@pytest.mark.parametrize("accepts", [True, False])
def test_where_there_is_no_filter_or_no_nginx_it_is_closed_at_once(
    shared: ListeningSocket, port: int, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    if accepts:
        monkeypatch.setattr(module, "SO_ATTACH_FILTER", 9999)
    began = time.monotonic()
    shared.shut(accepts=accepts)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)
    assert time.monotonic() - began < module.UNDER_WAY_S
    shared.shut(accepts=accepts)


def test_a_port_that_is_taken_is_an_error(shared: ListeningSocket, port: int) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        ListeningSocket(port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.skipif(not module.has_ipv6(), reason="the kernel has no IPv6")
def test_callers_of_both_families_are_answered(program: Program, port: int, host: str) -> None:
    nginx = started(program)
    try:
        wait_for(lambda: not program.fault(), 10, "NGINX")
        connection = http.client.HTTPConnection(host, port, timeout=10)
        with closing(connection):
            connection.request("GET", ALIVE)
            assert connection.getresponse().status == 204
    finally:
        nginx.terminate()
        nginx.wait(10)


def test_nginx_answers_all_who_were_in_when_it_was_asked_to_quit(
    shared: ListeningSocket, port: int, program: Program
) -> None:
    master = started(program)
    try:
        wait_for(lambda: not program.fault(), 10, "NGINX")
        (worker,) = descendants(master.pid) - {master.pid}
        # Nobody is accepted, as if it were busy with a request.
        os.kill(worker, signal.SIGSTOP)
        with ThreadPoolExecutor(CALLERS) as pool:
            callers = [pool.submit(status, port) for _ in range(CALLERS)]
            wait_for(lambda: shared.waiting() == CALLERS, 10, "the callers")
            threading.Timer(0.3, os.kill, (worker, signal.SIGCONT)).start()
            program.before_stop(True)  # noqa: FBT003
            master.send_signal(program.stop_signal)
            assert [caller.result() for caller in callers] == [204] * CALLERS
        assert master.wait(10) == 0
    finally:
        master.kill()
        master.wait()


def status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", ALIVE, headers={"Connection": "close"})
    return connection.getresponse().status


def test_who_comes_while_there_is_no_nginx_is_answered_by_the_next(
    shared: ListeningSocket, port: int, program: Program
) -> None:
    with ThreadPoolExecutor() as pool:
        early = pool.submit(status, port)
        wait_for(lambda: shared.waiting() == 1, 10, "the caller")
        nginx = started(program)
        try:
            assert early.result() == 204
        finally:
            nginx.send_signal(program.stop_signal)
            assert nginx.wait(10) == 0


def test_who_comes_while_nginx_finishes_is_refused_at_once(
    shared: ListeningSocket, port: int, program: Program
) -> None:
    nginx = started(program)
    try:
        wait_for(lambda: not program.fault(), 10, "NGINX")
        with closing(socket.create_connection(("127.0.0.1", port))) as slow:
            slow.sendall(b"POST /invocations HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n1234")
            program.before_stop(True)  # noqa: FBT003
            nginx.send_signal(program.stop_signal)
            wait_for(lambda: refused(port), 2, "the closed shared")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 10)
            assert nginx.poll() is None, "it waits for the rest of the body"
    finally:
        nginx.kill()
        nginx.wait()


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        pass
    return False
