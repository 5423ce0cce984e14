"""Threads that do some work again and again, as long as their process lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


def start_rounds(work: Callable[[], object], name: str, pause: float = 0.0) -> None:
    """Start a thread that works for ever, with a pause before each round; failures are logged."""

    def go_on() -> None:
        while True:
            time.sleep(pause)
            try:
                work()
            except Exception:
                log.exception("a round of the thread %r failed", name)

    threading.Thread(target=go_on, name=name, daemon=True).start()
