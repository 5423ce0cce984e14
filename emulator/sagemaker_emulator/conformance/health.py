"""Checks of /ping: in time, and true."""

from __future__ import annotations

import os
import signal
import socket
import time

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.starting import must_be_started_here
from sagemaker_emulator.conformance.subject import AGAIN_S, LOADING_S, Subject
from sagemaker_emulator.host import processes
from sagemaker_emulator.host.calls import CONNECT_S

TIMES = 5
LIE_S = 10.0  # how long /ping may be wrong about a failure: two of the service's pings
WATCHED_S, WELL_S = 15.0, 8.0  # after a process was killed; less where all is well for so long
PROGRAMS = 2  # of different names, of which the largest process is killed


@check("ping.time")
def ping_is_in_time(subject: Subject) -> str:
    slowest = 0.0
    for _ in range(TIMES):
        reply = subject.ask("GET", "/ping", seconds=5 * subject.limits.ping_s)
        slowest = max(slowest, reply.last_s)
        if reply.status != 200:
            raise Failed(f"once ready, a ping is answered with {reply}")
        if slowest > subject.limits.ping_s:
            raise Failed(f"a ping took {slowest:.2f} s")
    return f"the slowest of {TIMES} took {1000 * slowest:.0f} ms"


@check("ping.connection")
def connection_is_in_time(subject: Subject) -> str:
    slowest = 0.0
    for _ in range(TIMES):
        begin = time.monotonic()
        try:
            place = (subject.address.host, subject.address.port)
            socket.create_connection(place, timeout=8 * CONNECT_S).close()
        except OSError as error:
            raise Failed(f"no connection: {error}") from error
        slowest = max(slowest, time.monotonic() - begin)
    if slowest > CONNECT_S:
        raise Failed(f"a connection took {1000 * slowest:.0f} ms")
    return f"the slowest of {TIMES} took {1000 * slowest:.0f} ms"


@check("ping.loading")
def ping_is_true_while_loading(subject: Subject) -> str:
    must_be_started_here(subject)
    subject.good_request()
    if isinstance(subject.first, Reply) and subject.first.good:
        return f"the first request after the first 200 was answered in {subject.first.last_s:.2f} s"
    raise Failed(
        f"the first request after the first 200 got: {subject.first}; later the same one was "
        "answered well"
    )


@check("ping.broken")
def ping_is_true_when_broken(subject: Subject) -> str:
    must_be_started_here(subject)
    subject.good_request()
    if not subject.pid:
        raise NotApplicable("its processes are not on this machine, or it has no /proc")
    wait_until_answered(subject)
    came: list[str] = []
    for name in largest_programs(subject):
        if came and (subject.container.ended() or subject.usual_fault()):
            subject.again()
            wait_until_answered(subject)
        if subject.not_ready:
            break
        came.append(f"{name} was killed: {after_death(subject, name)}")
    if not came:
        raise NotApplicable("it is one process, and cannot be broken from outside")
    return "; ".join(came)


def largest_programs(subject: Subject) -> list[str]:
    """Return the names of the child processes that have the most memory, the largest first."""
    children = sorted(processes.tree(subject.pid)[1:], key=processes.memory, reverse=True)
    return list(dict.fromkeys(map(processes.name, children)))[:PROGRAMS]


def wait_until_answered(subject: Subject) -> None:
    """Wait for a good answer: a ping that is not true is 200 while models are still loaded."""
    until = time.monotonic() + min(LOADING_S, subject.limits.start_s)
    while subject.usual_fault() and time.monotonic() < until:
        time.sleep(AGAIN_S)


def after_death(subject: Subject, name: str) -> str:
    """Kill the largest child process of a name; return what comes of it.

    Raises Failed where pings are 200 for a long time while requests are not answered.
    """
    children = [one for one in processes.tree(subject.pid)[1:] if processes.name(one) == name]
    if not children:
        return "it had ended by itself"
    victim = max(children, key=processes.memory)
    try:
        os.kill(victim, signal.SIGKILL)
    except PermissionError as error:
        raise NotApplicable("its processes belong to another user; run this as root") from error
    begin, lie_since, well_since = time.monotonic(), 0.0, time.monotonic()
    while time.monotonic() - begin < WATCHED_S and time.monotonic() - well_since < WELL_S:
        if subject.container.ended():
            return "it ended, and would be replaced"
        healthy = not subject.ping_fault()
        fault = subject.usual_fault(subject.limits.answer_s)
        if fault or not healthy:
            well_since = time.monotonic()
        if healthy and fault and not subject.ping_fault():
            lie_since = lie_since or time.monotonic()
            if time.monotonic() - lie_since > LIE_S:
                raise Failed(f"{LIE_S:.0f} s after {name} was killed /ping is 200, but {fault}")
        else:
            lie_since = 0.0
        time.sleep(AGAIN_S)
    return f"pings and answers agreed within {LIE_S:.0f} s"
