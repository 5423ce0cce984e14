"""Checks of the start and the ports."""

from __future__ import annotations

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.host import processes
from sagemaker_emulator.host.containers import NEEDED_PORTS
from sagemaker_emulator.host.health import hint_for


def must_be_started_here(subject: Subject) -> None:
    if not subject.is_started_here:
        raise NotApplicable("the server runs already; give its image or its folder")


@check("start.ready")
def becomes_ready(subject: Subject) -> str:
    must_be_started_here(subject)
    reason = subject.not_ready
    if reason:
        last = f"its last line: {subject.lines[-1]}" if subject.lines else ""
        raise Failed("; ".join(filter(None, (reason, hint_for(reason), last))))
    return f"the first 200 after {subject.ready_s:.1f} s"


@check("ports.range")
def further_ports_are_in_range(subject: Subject) -> str:
    must_be_started_here(subject)
    if subject.is_image and not subject.labelled("accept-bind-to-port"):
        raise NotApplicable("the image has no label accept-bind-to-port: it gets no range")
    if subject.not_ready:
        raise NotApplicable("it did not start")
    if not subject.pid:
        raise NotApplicable("its processes are not on this machine, or it has no /proc")
    try:
        ports = processes.listening(processes.tree(subject.pid))
    except PermissionError as error:
        raise NotApplicable("its processes belong to another user; run this as root") from error
    port = subject.given_port
    others = ports - set(range(port, port + NEEDED_PORTS))
    if others:
        raise Failed(f"it listens on {sorted(others)}, which is not in {port + 1} and up")
    return f"it listens on {sorted(ports)}"
