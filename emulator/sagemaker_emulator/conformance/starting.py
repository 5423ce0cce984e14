"""Checks of the start, the ports and the image."""

from __future__ import annotations

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import CAPABILITIES, Subject
from sagemaker_emulator.host import processes
from sagemaker_emulator.host.containers import NEEDED_PORTS
from sagemaker_emulator.host.health import hint_for

KNOWN = {"accept-bind-to-port", "multi-models", "bidirectional-streaming"}
SHELLS = {"sh", "bash", "dash", "ash", "zsh"}


def must_be_started_here(subject: Subject) -> None:
    if not subject.is_started_here:
        raise NotApplicable("the server runs already; give its image or its folder")


def must_be_an_image(subject: Subject) -> None:
    if not subject.is_image:
        raise NotApplicable("this needs the image")


@check("start.exec-form")
def serve_in_exec_form(subject: Subject) -> str:
    must_be_an_image(subject)
    entry = subject.configuration.get("Entrypoint") or []
    if not entry:
        return "no ENTRYPOINT: the program `serve` of PATH is started"
    name = entry[0].rpartition("/")[2]
    if name in SHELLS and "-c" in entry[1:]:
        raise Failed(f"ENTRYPOINT is in shell form: {entry}; the word `serve` is lost")
    if name == "tini":
        raise Failed(f"ENTRYPOINT is {entry}; the service's guide warns of tini")
    return f"ENTRYPOINT is {entry}"


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


@check("image.labels")
def labels_are_known(subject: Subject) -> str:
    must_be_an_image(subject)
    found = [name for name in subject.labels if name.startswith(CAPABILITIES)]
    if not found:
        raise NotApplicable("the image has no label of a capability, and needs none")
    if wrong := [
        f"{name}={subject.labels[name]}"
        for name in found
        if subject.labels[name] != "true" or name.removeprefix(CAPABILITIES) not in KNOWN
    ]:
        raise Failed(", ".join(wrong))
    return ", ".join(sorted(found))
