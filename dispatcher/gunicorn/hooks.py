"""gunicorn's configuration: the part that its command line has no options for."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher.observability import multiprocess
from dispatcher.observability.multiprocess import DIR_VARIABLE
from dispatcher.observability.request_log import Lines, log_handler

NOTIFY_S = 1.0

# gunicorn checks its workers once a second. After a gap this long between two checks the whole
# container was frozen, and the workers get as long again to report.
FROZEN_S = 5.0


def on_starting(server: Any) -> None:
    """Prepare the log and the counters; keep frozen workers from being killed."""
    if os.environ.get("LOG_FORMAT") == "json":
        server.log.error_log.handlers = [log_handler(Lines("gunicorn", as_json=True))]
    server.murder_workers = skip_after_freeze(server.murder_workers)
    multiprocess.clear(Path(os.environ[DIR_VARIABLE]))


def skip_after_freeze(
    check: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Return `check`, made to do nothing soon after a long gap between two calls."""
    checked, woke = clock(), -math.inf

    def check_unless_frozen() -> None:
        nonlocal checked, woke
        before, checked = checked, clock()
        if checked - before > FROZEN_S:
            woke = checked
        if checked - woke > FROZEN_S:
            check()

    return check_unless_frozen


def post_fork(server: Any, worker: Any) -> None:
    """Keep a slowly starting worker alive; make its files."""

    def notify() -> None:
        while not worker.booted:
            worker.notify()
            time.sleep(NOTIFY_S)

    threading.Thread(target=notify, daemon=True).start()
    try:
        multiprocess.allocate(Path(os.environ[DIR_VARIABLE]), worker.pid)
    except OSError as error:
        server.log.warning("a web worker's counts will be missing from /metrics: %s", error)
        del os.environ[DIR_VARIABLE]


def child_exit(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's signature
    """Remove a dead worker's gauges; keep its counts."""
    multiprocess.retire(Path(os.environ[DIR_VARIABLE]), worker.pid)
