"""Checks of many requests, slow ones, abandoned ones, and of the end."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply, Request
from sagemaker_emulator.conformance.report import Check
from sagemaker_emulator.conformance.starting import must_be_started_here
from sagemaker_emulator.conformance.subject import AGAIN_S, Subject
from sagemaker_emulator.host.calls import NoAnswer

ROUNDS = 2  # requests of each caller
ABANDONED = 8
IN_FLIGHT = 4
BEGUN_S = 0.2  # a request that was sent as long ago is being answered
SLOW_S = 1.0  # a request that is refused sooner does not show how slow ones end
STALLED_S = 5.0  # for others, while a caller sends nothing more


@dataclass(frozen=True)
class Load:
    """What came of parallel requests.

    Args:
        faults: of the requests.
        slowest_s: of the requests.
        ping_faults: of pings meanwhile.
        slowest_ping_s: of these pings.

    """

    faults: list[str]
    slowest_s: float
    ping_faults: list[str]
    slowest_ping_s: float


def load(subject: Subject) -> Load:
    """Send requests in parallel and pings meanwhile, once for all checks."""
    if "load" not in subject.kept:
        request = subject.good_request()
        with ThreadPoolExecutor(subject.settings.parallel) as callers:
            wanted = ROUNDS * subject.settings.parallel
            work = [callers.submit(tried, subject, request) for _ in range(wanted)]
            pings = [tried_ping(subject)]
            while not all(one.done() for one in work):
                pings.append(tried_ping(subject))
                time.sleep(AGAIN_S)
            replies = [one.result() for one in work]
        bad = [str(one) for one in replies if not isinstance(one, Reply) or not one.good]
        bad_pings = [str(one) for one in pings if not isinstance(one, Reply) or one.status != 200]
        subject.kept["load"] = Load(bad, slowest(replies), bad_pings, slowest(pings))
    found: Load = subject.kept["load"]
    return found


def tried(subject: Subject, request: Request) -> Reply | str:
    try:
        return subject.invoke(request)
    except NoAnswer as error:
        return str(error)


def tried_ping(subject: Subject) -> Reply | str:
    try:
        return subject.ask("GET", "/ping", seconds=5 * subject.limits.ping_s)
    except NoAnswer as error:
        return str(error)


def slowest(replies: list[Reply | str]) -> float:
    return max((one.last_s for one in replies if isinstance(one, Reply)), default=0.0)


def parallel_requests_are_answered(subject: Subject) -> str:
    """See that requests at the same time are all answered well."""
    found, count = load(subject), subject.settings.parallel
    if found.faults:
        raise Failed(f"{len(found.faults)} of {ROUNDS * count} requests: {found.faults[0]}")
    return f"{count} at a time, the slowest took {found.slowest_s:.2f} s"


def pings_are_quick_meanwhile(subject: Subject) -> str:
    """See that pings are answered in time while requests are."""
    found = load(subject)
    if subject.failed("ping.time"):
        raise NotApplicable("see ping.time")
    if found.ping_faults:
        raise Failed(f"a ping during the requests: {found.ping_faults[0]}")
    if found.slowest_ping_s > subject.limits.ping_s:
        raise Failed(f"a ping during the requests took {found.slowest_ping_s:.2f} s")
    return f"the slowest took {1000 * found.slowest_ping_s:.0f} ms"


def slow_request_ends(subject: Subject) -> str:
    """See that a request that takes long is answered, or ended, within 60 s."""
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


def abandoned_requests_harm_nobody(subject: Subject) -> str:
    """See that callers that go away before their answer leave the server as it was."""
    request = subject.good_request()
    for _ in range(ABANDONED):
        connection = sent(subject, request, len(request.body))
        connection.close()
    subject.must_be_well()
    return f"{ABANDONED} callers went away, and the next was answered as before"


def stalled_request_harms_nobody(subject: Subject) -> str:
    """See that a caller that stops in the middle of its body does not keep others waiting."""
    if subject.failed("concurrency.ping") or subject.failed("concurrency.parallel"):
        raise NotApplicable("see concurrency")
    request = subject.good_request()
    with sent(subject, request, len(request.body) // 2):
        time.sleep(AGAIN_S)
        if fault := subject.usual_fault(STALLED_S):
            raise Failed(f"while one caller's body was on its way, another's {fault}")
        if fault := subject.ping_fault(STALLED_S):
            raise Failed(f"while one caller's body was on its way, {fault}")
    subject.must_be_well()
    return "others were answered meanwhile"


def sent(subject: Subject, request: Request, count: int) -> socket.socket:
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


class Flight(threading.Thread):
    """A request that is being answered when SIGTERM comes."""

    def __init__(self, subject: Subject, request: Request) -> None:
        super().__init__(daemon=True)
        self.subject, self.request = subject, request
        self.fault, self.done = "", False

    def run(self) -> None:
        try:
            reply = self.subject.invoke(self.request)
            self.fault = "" if reply.good else str(reply)
        except NoAnswer as error:
            self.fault = str(error)
        self.done = True


def begun(subject: Subject) -> list[Flight]:
    """Send some requests that last; return those that are not answered yet.

    They are few enough to be answered within 30 s, even one after the other.
    """
    request = subject.slow or subject.request
    reply = tried(subject, request) if request else ""
    if request is None or not isinstance(reply, Reply) or not reply.good:
        return []
    most = 1 if subject.failed("concurrency.ping") else IN_FLIGHT
    count = min(most, int(subject.limits.stop_s / 2 / reply.last_s))
    flights = [Flight(subject, request) for _ in range(count)]
    for one in flights:
        one.start()
    if reply.last_s > BEGUN_S:
        time.sleep(BEGUN_S)
    return [one for one in flights if not one.done and reply.last_s > BEGUN_S]


def ends_at_sigterm(subject: Subject) -> str:
    """See that it ends within 30 s of SIGTERM, which comes while requests are in flight."""
    must_be_started_here(subject)
    flights = begun(subject)
    subject.kept["flights"] = flights
    begin = time.monotonic()
    subject.stop()
    for one in flights:
        one.join(1.0)  # its connection has ended with the container
    if subject.stopped.startswith("killed"):
        raise Failed(subject.stopped)
    if not subject.stopped:
        raise NotApplicable(f"it had ended before: {subject.container.ended()}")
    return f"ended {time.monotonic() - begin:.1f} s after SIGTERM"


def requests_in_flight_finish(subject: Subject) -> str:
    """See that what was being answered at SIGTERM is answered to the end."""
    must_be_started_here(subject)
    flights: list[Flight] = subject.kept.get("flights", [])
    if not flights:
        raise NotApplicable(
            "no request was in flight at SIGTERM; give one that takes some seconds with --slow-body"
        )
    lost = [one.fault or "no answer" for one in flights if one.fault or not one.done]
    if lost:
        raise Failed(f"{len(lost)} of {len(flights)} requests in flight: {lost[0]}")
    return f"{len(flights)} requests in flight were answered"


def exit_code_is_zero(subject: Subject) -> str:
    """See that it ends with exit code 0."""
    must_be_started_here(subject)
    if subject.failed("stop.sigterm") or subject.code is None:
        raise NotApplicable("it did not end by itself")
    if subject.code:
        raise Failed(f"exit code {subject.code}")
    return "exit code 0"


LOAD = (
    Check(
        "concurrency.parallel",
        parallel_requests_are_answered,
        asked="good requests in parallel (--parallel): all answered with 2xx within 60 s",
        why="the service sends requests as they come, with no queue of its own",
        fix="more workers or threads, a queue in front of the model, a longer backlog",
    ),
    Check(
        "concurrency.ping",
        pings_are_quick_meanwhile,
        asked="pings meanwhile: within 2 s",
        why="a busy container that cannot answer pings is replaced, under load of all times",
        fix="answer /ping beside requests: threads, an event loop that is not blocked, or NGINX",
    ),
    Check(
        "deadlines.slow",
        slow_request_ends,
        asked="the request of --slow-body: answered or ended within 60 s",
        why="the caller has an error by then; what still computes takes the room of others",
        fix="a limit on a request's time in the server, below 60 s, and 504 after it",
    ),
    Check(
        "deadlines.abandoned",
        abandoned_requests_harm_nobody,
        asked="requests whose callers go away, and then one as before",
        why="that is how the service ends a call after 60 s",
        fix="let a broken connection end its own request only",
    ),
    Check(
        "deadlines.stalled",
        stalled_request_harms_nobody,
        asked="a request whose body stops in the middle, and others meanwhile",
        why="one slow caller must not take the server from the others",
        fix="threads, an event loop, or NGINX in front, which reads the whole body first",
    ),
)
STOP = (
    Check(
        "stop.sigterm",
        ends_at_sigterm,
        asked="SIGTERM: the end within 30 s",
        why="then comes SIGKILL, and what was not finished is lost",
        fix='ENTRYPOINT in exec form (["program"]) or `exec` in the script, so that the server is '
        "process 1 and gets the signal; a handler for it",
    ),
    Check(
        "stop.drain",
        requests_in_flight_finish,
        asked="requests that were sent before SIGTERM: their answers",
        why="each scaling in and each update ends containers; callers should not see it",
        fix="at SIGTERM accept no more, finish what is in flight, then end",
    ),
    Check(
        "stop.code",
        exit_code_is_zero,
        asked="for exit code 0 after SIGTERM",
        why="another code looks like a crash to those who read the logs",
        fix="handle SIGTERM; end with exit(0)",
    ),
)
