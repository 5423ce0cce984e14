"""Checks of the start, and of /ping: in time, and true."""

from __future__ import annotations

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.host.health import hint_for

TIMES = 5


def must_be_started_here(subject: Subject) -> None:
    if not subject.is_started_here:
        raise NotApplicable("the server runs already; give its image or its folder")


@check("start.ready")
def becomes_ready(subject: Subject) -> str:
    must_be_started_here(subject)
    if reason := subject.not_ready:
        last = f"its last line: {subject.lines[-1]}" if subject.lines else ""
        raise Failed("; ".join(filter(None, (reason, hint_for(reason), last))))
    return f"the first 200 after {subject.ready_s:.1f} s"


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


@check("ping.loading")
def ping_is_true_while_loading(subject: Subject) -> str:
    must_be_started_here(subject)
    subject.good_request()
    if subject.first.good:
        return f"the first request after the first 200 was answered in {subject.first.last_s:.2f} s"
    raise Failed(
        f"the first request after the first 200 got: {subject.first}; later the same one was "
        "answered well"
    )
