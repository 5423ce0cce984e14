"""The time that a request may take."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from clients.errors import BadParameter, DeadlineExceeded

TIMEOUT_PARAMETER = "timeout_ms"


@dataclass(frozen=True)
class TimeLimit:
    """The time for one request: for its body, the queue, the model and what follows.

    Args:
        ends: when all of it is used up, on the clock of `time.monotonic()`.
        each: seconds for each of several results that are sent as they are made.

    """

    ends: float
    each: float = math.inf

    def deadline(self) -> float:
        """Return the deadline of a result that is begun now."""
        return min(self.ends, time.monotonic() + self.each)


def time_used_up() -> DeadlineExceeded:
    """Return the error for a request that took too long."""
    return DeadlineExceeded(
        "the time for this request is used up", hint="send fewer or smaller items in one request"
    )


def read_timeout(text: str | None) -> float:
    """Return the caller's own time limit in seconds; infinity where there is none.

    Raises:
        BadParameter: it is no whole number of milliseconds from 1, or has more than nine digits.

    """
    if text is None:
        return math.inf
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise BadParameter(
            f"`{TIMEOUT_PARAMETER}` is {text[:60]!r}",
            hint="expected milliseconds, a whole number from 1 to 999999999",
        )
    return int(text) / 1000
