"""What takes long is named."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SLOW_S = 3.0


@contextmanager
def announce(what: str) -> Iterator[None]:
    """Say what is done, if it takes long."""
    timer = threading.Timer(SLOW_S, lambda: sys.stderr.write(f"{what} …\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
