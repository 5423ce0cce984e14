"""How many requests are answered at a time, how many wait, and when one is turned away.

Threads beyond these are left for `/ping` and its kin: however busy the models are, whether they are
ready is answered at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from clients.errors import DeadlineExceeded
from dispatcher.errors import TooManyRequests


class Admission:
    """Lets requests in.

    Args:
        active: how many are answered at a time.
        waiting: how many more may wait for their turn.

    """

    def __init__(self, active: int, waiting: int) -> None:
        self._places = threading.Semaphore(active + waiting)
        self._turns = threading.Semaphore(active)

    def enter(self, timeout: float) -> Callable[[], None]:
        """Wait for a turn; return what gives it back, to be called once.

        Raises:
            TooManyRequests: as many wait as may.
            DeadlineExceeded: the turn did not come within `timeout` seconds.

        """
        if not self._places.acquire(blocking=False):
            raise TooManyRequests(
                "too many requests are waiting already", hint="try again after Retry-After seconds"
            )
        if not self._turns.acquire(timeout=timeout):
            self._places.release()
            raise DeadlineExceeded(
                "the time for this request was used up while it waited for others",
                hint="send fewer requests at a time",
            )

        def leave() -> None:
            self._turns.release()
            self._places.release()

        return leave
