"""Wait for an endpoint, and say why it failed with the container's own lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic, sleep

from tool.deploy.resources.aws import Aws, Refused
from tool.emulate.host.health import hint_for
from tool.trouble import Trouble

POLL_S = 15.0
MOST_S = 3600.0  # an update waits for its alarms as well
LOG_LINES = 30
LOG_GROUP = "/aws/sagemaker/Endpoints/{}"
SETTLED = ("InService", "OutOfService", "Failed", "UpdateRollbackFailed")
PING = "ping"
PING_FIX = (
    "the lines of the container above say why; `dispatcher emulate IMAGE --model model.tar.gz` "
    "shows the same on this machine, and --start-timeout gives it longer"
)


class EndpointFailed(Trouble):
    """The endpoint did not come up, or went back to what it was."""


def status_of(aws: Aws, endpoint: str) -> str:
    """Return the endpoint's status; empty if there is none of this name."""
    for one in aws.every("sagemaker", "list_endpoints", "Endpoints", NameContains=endpoint):
        if one["EndpointName"] == endpoint:
            return str(one["EndpointStatus"])
    return ""


def until_settled(aws: Aws, endpoint: str, say: Callable[[str], None]) -> str:
    """Wait while the endpoint changes; return its status, empty when it is gone.

    Raises:
        Trouble: that takes longer than an hour.

    """
    begin, shown = monotonic(), ""
    while (status := status_of(aws, endpoint)) and status not in SETTLED:
        passed = monotonic() - begin
        if passed > MOST_S:
            raise Trouble(
                f"{endpoint} is {status} since {MOST_S:.0f} s; look at `dispatcher deploy status "
                f"{endpoint}`, and run the same command again to go on"
            )
        line = f"{endpoint}: {status}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}, {passed:.0f} s")
            sys.stderr.flush()
        elif line != shown:
            say(line)
        shown = line
        sleep(POLL_S)
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    return status


def until_in_service(aws: Aws, endpoint: str, config: str, say: Callable[[str], None]) -> None:
    """Wait until an endpoint serves a configuration.

    Raises:
        EndpointFailed: it does not; the lines of its container were said.

    """
    status = until_settled(aws, endpoint, say)
    found = aws.call("sagemaker", "describe_endpoint", EndpointName=endpoint) if status else {}
    if status == "InService" and found["EndpointConfigName"] == config:
        say(f"{endpoint}: InService")
        return
    reason = str(found.get("FailureReason", "AWS gives no reason"))
    for line in log_lines(aws, endpoint):
        say(f"  | {line}")
    fix = PING_FIX if PING in reason else hint_for(reason) or "correct that, and run it again"
    if status == "InService":
        raise EndpointFailed(f"{endpoint} went back to what it served before: {reason}; {fix}")
    raise EndpointFailed(f"{endpoint} is {status or 'gone'}: {reason}; {fix}")


def log_lines(aws: Aws, endpoint: str) -> list[str]:
    """Return the container's last lines; a line that says why, where they cannot be read."""
    group = LOG_GROUP.format(endpoint)
    try:
        streams = aws.call(
            "logs",
            "describe_log_streams",
            logGroupName=group,
            orderBy="LastEventTime",
            descending=True,
            limit=1,
        )["logStreams"]
        if not streams:
            return [f"(no log streams in {group})"]
        events = aws.call(
            "logs",
            "get_log_events",
            logGroupName=group,
            logStreamName=streams[0]["logStreamName"],
            limit=LOG_LINES,
        )["events"]
    except Refused as error:
        if error.code == "ResourceNotFoundException":
            return [f"(the container wrote nothing to {group})"]
        return [f"({error})"]
    return [one["message"].rstrip() for one in events]
