"""The service's limits on a container and on a request."""

from __future__ import annotations

from dataclasses import dataclass

MB = 2**20


@dataclass(frozen=True)
class Limits:
    """The service's limits, in seconds and bytes.

    Args:
        start_s: until the first ping is answered with 200.
        ping_every_s: between pings.
        ping_s: for the answer to a ping.
        answer_s: for an answer, or the begin of a streamed one.
        stream_s: for a streamed answer.
        load_s: for loading or unloading a model of a multi-model endpoint.
        stop_s: between SIGTERM and SIGKILL.
        max_body: of a request.

    """

    start_s: float = 480.0
    ping_every_s: float = 5.0
    ping_s: float = 2.0
    answer_s: float = 60.0
    stream_s: float = 480.0
    load_s: float = 360.0
    stop_s: float = 30.0
    max_body: int = 25 * MB
