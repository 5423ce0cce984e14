"""Checks of the start, the ports, the image and the logs."""

from __future__ import annotations

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable
from sagemaker_emulator.conformance.report import Check
from sagemaker_emulator.conformance.subject import CAPABILITIES, Subject
from sagemaker_emulator.host import processes
from sagemaker_emulator.host.containers import NEEDED_PORTS, NO_SERVE, Image
from sagemaker_emulator.host.health import hint_for

GB = 10**9
MOST_BYTES = 10 * GB
KNOWN = {"accept-bind-to-port", "multi-models", "bidirectional-streaming"}
SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
READ_ONLY = "read-only file system"


def must_be_started_here(subject: Subject) -> None:
    if not subject.is_started_here:
        raise NotApplicable("the server runs already; give its image or its folder")


def must_be_an_image(subject: Subject) -> None:
    if not subject.is_image:
        raise NotApplicable("this needs the image")


def serve_in_exec_form(subject: Subject) -> str:
    """See that the entry point takes the word `serve`, and no shell or `tini` is in its place."""
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


def becomes_ready(subject: Subject) -> str:
    """See that it answers a ping with 200 in time."""
    must_be_started_here(subject)
    reason = subject.not_ready
    if reason and wants_to_write(subject):
        raise NotApplicable(f"see start.read-only-model; {reason}")
    if reason:
        hint = hint_for(reason)
        last = f"; its last line: {subject.lines[-1]}" if subject.lines else ""
        raise Failed(f"{reason}{f'; {hint}' * bool(hint)}{last}")
    return f"the first 200 after {subject.ready_s:.1f} s"


def wants_to_write(subject: Subject) -> str:
    """Return the line in which it says so."""
    found = (one for one in subject.lines if READ_ONLY in one.lower() and "/opt/ml/model" in one)
    return next(found, "") if isinstance(subject.container, Image) else ""


def model_is_read_only(subject: Subject) -> str:
    """See that it starts with /opt/ml/model mounted read-only."""
    must_be_an_image(subject)
    if not subject.settings.model:
        raise NotApplicable("no model is mounted; give one with --model")
    if line := wants_to_write(subject):
        raise Failed(f"it writes: {line}")
    if subject.not_ready:
        raise NotApplicable("it did not start")
    return "it started with a read-only model, and does not complain"


def port_is_kept_to(subject: Subject) -> str:
    """See that it listens where SAGEMAKER_BIND_TO_PORT says."""
    must_be_started_here(subject)
    if subject.is_image and not subject.labelled("accept-bind-to-port"):
        raise NotApplicable("the image has no label accept-bind-to-port: it gets 8080")
    if subject.wrong_port:
        raise Failed("it answers pings on another port than SAGEMAKER_BIND_TO_PORT")
    if subject.not_ready:
        raise NotApplicable("it did not start")
    return "it answers pings on the port that it was given"


def further_ports_are_in_range(subject: Subject) -> str:
    """See that each further port that it listens on is in SAGEMAKER_SAFE_PORT_RANGE."""
    must_be_started_here(subject)
    if subject.is_image and not subject.labelled("accept-bind-to-port"):
        raise NotApplicable("the image has no label accept-bind-to-port: it gets no range")
    if subject.not_ready or subject.wrong_port:
        raise NotApplicable("it does not answer on the port that it was given")
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


def labels_are_known(subject: Subject) -> str:
    """See that labels of capabilities have names and values that the service knows."""
    must_be_an_image(subject)
    found = {
        name.removeprefix(CAPABILITIES): value
        for name, value in subject.labels.items()
        if name.startswith(CAPABILITIES)
    }
    if not found:
        raise NotApplicable("the image has no label of a capability, and needs none")
    wrong = [f"{name}={value}" for name, value in found.items() if value != "true"]
    wrong += [f"{name} (unknown)" for name in found if name not in KNOWN]
    if wrong:
        raise Failed(", ".join(wrong))
    return ", ".join(sorted(found))


def size_is_allowed(subject: Subject) -> str:
    """See that the image is small enough for serverless endpoints."""
    must_be_an_image(subject)
    text = f"{subject.image_bytes / GB:.2f} GB unpacked"
    if subject.image_bytes > MOST_BYTES:
        raise Failed(text)
    return text


def no_network_is_needed(subject: Subject) -> str:
    """See that it gets ready on a network that leads nowhere."""
    if subject.not_ready:
        raise Failed(f"without a way out: {subject.not_ready}")
    return f"the first 200 after {subject.ready_s:.1f} s, on a network that leads nowhere"


def something_is_logged(subject: Subject) -> str:
    """See that it writes lines to stdout or stderr."""
    must_be_started_here(subject)
    if not subject.lines:
        raise Failed("no line came from the start to the end")
    return f"{len(subject.lines)} lines"


def logs_are_not_buffered(subject: Subject) -> str:
    """See that lines come while it runs, not all at its end."""
    must_be_started_here(subject)
    if not subject.lines:
        raise NotApplicable("it wrote nothing")
    if not subject.stopped:
        raise NotApplicable("it ended before SIGTERM")
    if not subject.lines_before_stop:
        raise Failed(f"all {len(subject.lines)} lines came only after SIGTERM")
    return f"{subject.lines_before_stop} of {len(subject.lines)} lines came before SIGTERM"


START = (
    Check(
        "start.exec-form",
        serve_in_exec_form,
        asked="`docker run IMAGE serve`: an ENTRYPOINT in exec form that takes the word, or none "
        "and a program `serve` on PATH",
        why="in shell form the word is lost, and SIGTERM reaches the shell instead of the server",
        fix=NO_SERVE,
    ),
    Check(
        "start.ready",
        becomes_ready,
        asked="GET /ping until it is 200, for up to 8 minutes",
        why='else the deployment ends with "did not pass the ping health check"',
        fix="listen on 0.0.0.0 and answer /ping with 200 as soon as the model is loaded; a large "
        "model may need more time: ContainerStartupHealthCheckTimeoutInSeconds",
    ),
    Check(
        "start.read-only-model",
        model_is_read_only,
        asked="to start with /opt/ml/model read-only",
        why="the service mounts the model so; a server that writes there ends at its start",
        fix="write caches and compiled files to /tmp",
    ),
    Check(
        "ports.bind",
        port_is_kept_to,
        asked="to listen on SAGEMAKER_BIND_TO_PORT",
        why="beside other containers the service gives each a port of its own",
        fix="read the variable and fall back to 8080; without that, take the label "
        "accept-bind-to-port out of the image",
    ),
    Check(
        "ports.range",
        further_ports_are_in_range,
        asked="to listen elsewhere only inside SAGEMAKER_SAFE_PORT_RANGE",
        why="another port may be taken by the service or by the container beside it",
        fix="take further ports from the variable (LOW-HIGH), or use Unix sockets",
    ),
    Check(
        "image.labels",
        labels_are_known,
        asked="for labels of capabilities by known names, with the value true",
        why="a capability with a misspelt label is not there for the service",
        fix=f"LABEL {CAPABILITIES}NAME=true, where NAME is one of {', '.join(sorted(KNOWN))}",
    ),
    Check(
        "image.size",
        size_is_allowed,
        asked="for an image of at most 10 GB",
        why="serverless endpoints refuse larger ones, and each new instance has to pull it",
        fix="leave compilers, caches and weights out; weights go into model.tar.gz",
    ),
)
ALONE = (
    Check(
        "start.no-network",
        no_network_is_needed,
        asked="to get ready without the internet",
        why="with network isolation, or in a VPC without a way out, a download at the start fails",
        fix="put into the image or the model archive what the start downloads",
    ),
)
LOGS = (
    Check(
        "logs.written",
        something_is_logged,
        asked="for lines on stdout or stderr",
        why="CloudWatch shows nothing else; a start that fails in silence cannot be explained",
        fix="log to stdout, not to a file",
    ),
    Check(
        "logs.unbuffered",
        logs_are_not_buffered,
        asked="for lines while it runs",
        why="what is in a buffer when the container is killed is lost, the reason above all",
        fix="PYTHONUNBUFFERED=1, or flush after each line",
    ),
)
