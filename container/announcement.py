"""Says in the log when the container is ready, or why it is not."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress

from container.supervisor.http_probe import ask, over_tcp
from container.supervisor.log import ERROR, Say

CONNECT_S = 3.0  # a web worker connects to Triton within half a second
ASK_S = 0.25
LATER_S = 5.0  # after it was said that it is not ready


class Announcement:
    """Logs where to send a request once `/ping` is 200; before that, once, why it is not.

    It asks in a thread of its own, for the supervisor must not wait for an answer.
    """

    def __init__(self, port: int, say: Say, *, page: bool = False, tls: object = None) -> None:
        self.port, self.tls = port, tls
        self.page = page
        self.say = say
        self.asking: threading.Thread | None = None
        self.settled = False

    def __call__(self, took: float) -> bool:
        """Return whether the outcome is known; `took` is the seconds since the start."""
        if self.asking is None:
            began = time.monotonic() - took
            self.asking = threading.Thread(target=self._ask_on, args=(began,), daemon=True)
            self.asking.start()
        return self.settled

    def _ask_on(self, began: float) -> None:
        # All programs run, and Triton has tried to load every model: only a web worker's connection
        # to Triton may still be missing, and its first requests to the models.
        say_at = time.monotonic() + CONNECT_S
        while (ping := ask(over_tcp(self.port, tls=self.tls), "/ping")).status != 200:
            if time.monotonic() > say_at:
                reason = "no answer"
                with suppress(ValueError, LookupError, TypeError):
                    reason = json.loads(ping.body)["error"]["message"]
                self.say(f"NOT ready, /ping is {ping.status}: {reason}", ERROR)
                say_at, self.settled = math.inf, True
            time.sleep(ASK_S if math.isfinite(say_at) else LATER_S)
        took = time.monotonic() - began
        address = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        page = f", or open {address}/ in a browser" if self.page else ""
        self.say(f"ready after {took:.1f} s: POST {address}/invocations{page}")
        self.settled = True
