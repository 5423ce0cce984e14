"""Checks of many requests, slow ones, stalled ones, and of the end."""

from __future__ import annotations

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from http import HTTPStatus

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply, Request
from sagemaker_emulator.conformance.health import must_be_started_here
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import AGAIN_S, Subject
from sagemaker_emulator.host.calls import NoAnswer

ROUNDS = 2  # requests of each caller
IN_FLIGHT = 4
BEGUN_S = 0.2  # a request that was sent as long ago is being answered
SLOW_S = 1.0  # a request that is refused sooner does not show how slow ones end
STALLED_S = 5.0  # for others, while a caller sends nothing more


def load(subject: Subject) -> tuple[list[Reply], list[Reply]]:
    """Send requests in parallel and pings meanwhile, once for all checks; return the answers."""
    if "load" not in subject.kept:
        subject.good_request()
        with ThreadPoolExecutor(subject.settings.parallel) as callers:
            work = [
                callers.submit(subject.tried) for _ in range(ROUNDS * subject.settings.parallel)
            ]
            patience = 5 * subject.limits.ping_s
            pings = [subject.ping(patience)]
            while not all(one.done() for one in work):
                pings.append(subject.ping(patience))
                time.sleep(AGAIN_S)
            subject.kept["load"] = [one.result() for one in work], pings
    found: tuple[list[Reply], list[Reply]] = subject.kept["load"]
    return found


def slowest(replies: list[Reply]) -> float:
    return max(one.last_s for one in replies)


@check("concurrency.parallel")
def parallel_requests_are_answered(subject: Subject) -> str:
    replies, _ = load(subject)
    faults = [str(one) for one in replies if not one.good]
    if faults:
        raise Failed(f"{len(faults)} of {len(replies)} requests: {faults[0]}")
    return f"{subject.settings.parallel} at a time, the slowest took {slowest(replies):.2f} s"


@check("concurrency.ping")
def pings_are_quick_meanwhile(subject: Subject) -> str:
    _, pings = load(subject)
    if subject.failed("ping.time"):
        raise NotApplicable("see ping.time")
    if fault := next((one for one in pings if one.status != HTTPStatus.OK), None):
        raise Failed(f"a ping during the requests: {fault}")
    if slowest(pings) > subject.limits.ping_s:
        raise Failed(f"a ping during the requests took {slowest(pings):.2f} s")
    return f"the slowest took {1000 * slowest(pings):.0f} ms"


@check("deadlines.slow")
def slow_request_ends(subject: Subject) -> str:
    if not subject.settings.slow:
        raise NotApplicable("no request takes long; give one with --slow-body")
    begin = time.monotonic()
    try:
        # A little more than the service waits, to see who ends it.
        status = subject.invoke(subject.settings.slow, seconds=subject.limits.answer_s + 2).status
        if status >= HTTPStatus.BAD_REQUEST and time.monotonic() < begin + SLOW_S:
            raise NotApplicable(f"the request of --slow-body was refused at once, with {status}")
        came = str(status)
    except NoAnswer as error:
        came = str(error)
    took = time.monotonic() - begin
    if took > subject.limits.answer_s:
        raise Failed(f"after {took:.0f} s: {came}")
    subject.must_be_well()
    return f"after {took:.1f} s: {came}"


@check("deadlines.stalled")
def stalled_request_harms_nobody(subject: Subject) -> str:
    if subject.failed("concurrency.ping") or subject.failed("concurrency.parallel"):
        raise NotApplicable("see concurrency")
    request = subject.good_request()
    with send_part(subject, request, len(request.body) // 2):
        time.sleep(AGAIN_S)
        if fault := subject.usual_fault(STALLED_S):
            raise Failed(f"while one caller's body was on its way, another's {fault}")
        if fault := subject.ping_fault(STALLED_S):
            raise Failed(f"while one caller's body was on its way, {fault}")
    subject.must_be_well()
    return "others were answered meanwhile"


def send_part(subject: Subject, request: Request, count: int) -> socket.socket:
    """Send a request with the first bytes of its body; return the connection."""
    address = subject.address
    if address.secure:
        raise NotApplicable("half a request is sent over plain HTTP only")
    headers = {
        "Host": f"{address.host}:{address.port}",
        **request.headers(),
        "Content-Length": len(request.body),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    try:
        connection = socket.create_connection((address.host, address.port), STALLED_S)
        connection.sendall(f"POST /invocations HTTP/1.1\r\n{head}\r\n".encode())
        connection.sendall(request.body[:count])
    except OSError as error:
        raise Failed(f"no connection: {error}") from error
    return connection


def begin_requests(subject: Subject) -> list[Future[Reply]]:
    """Send requests that last, few enough to end within 30 s; return those that still last."""
    request = subject.settings.slow or subject.request
    reply = subject.tried(request) if request else Reply(0, b"")
    if not reply.good or reply.last_s <= BEGUN_S:
        return []
    most = 1 if subject.failed("concurrency.ping") else IN_FLIGHT
    count = min(most, int(subject.limits.stop_s / 2 / reply.last_s))
    callers = ThreadPoolExecutor(IN_FLIGHT)
    flights = [callers.submit(subject.tried, request) for _ in range(count)]
    callers.shutdown(wait=False)
    time.sleep(BEGUN_S)
    return [one for one in flights if not one.done()]


@check("stop.sigterm")
def ends_at_sigterm(subject: Subject) -> str:
    must_be_started_here(subject)
    flights = begin_requests(subject)
    subject.kept["flights"] = flights
    begin = time.monotonic()
    subject.stop()
    wait(flights, 1.0)  # their connections have ended with the container
    if subject.stopped.startswith("killed"):
        raise Failed(subject.stopped)
    if not subject.stopped:
        raise NotApplicable(f"it had ended before: {subject.container.ended()}")
    if subject.code:
        raise Failed(f"exit code {subject.code}")
    return f"ended {time.monotonic() - begin:.1f} s after SIGTERM"


@check("stop.drain")
def requests_in_flight_finish(subject: Subject) -> str:
    must_be_started_here(subject)
    flights: list[Future[Reply]] = subject.kept.get("flights", [])
    if not flights:
        raise NotApplicable(
            "no request was in flight at SIGTERM; give one that takes some seconds with --slow-body"
        )
    replies = [one.result() if one.done() else Reply(0, b"no answer") for one in flights]
    if lost := [one for one in replies if not one.good]:
        raise Failed(f"{len(lost)} of {len(flights)} requests in flight: {lost[0]}")
    return f"{len(flights)} requests in flight were answered"
