"""The service's limits on a container and on a request."""

from __future__ import annotations

from dataclasses import dataclass

MB = 2**20
VARIANT = "AllTraffic"  # the only production variant


@dataclass(frozen=True)
class Limits:
    """The service's limits, in seconds and bytes."""

    start_s: float = 480.0  # until the first ping is answered with 200
    ping_every_s: float = 5.0
    ping_s: float = 2.0  # for the answer to a ping
    answer_s: float = 60.0  # for an answer, or the begin of a streamed one
    stream_s: float = 480.0  # for a streamed answer
    load_s: float = 360.0  # for loading or unloading a model of a multi-model endpoint
    stop_s: float = 30.0  # between SIGTERM and SIGKILL
    max_body: int = 25 * MB  # of a request
