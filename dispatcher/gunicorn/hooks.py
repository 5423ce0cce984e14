"""gunicorn's configuration: the part that its command line has no options for."""

from __future__ import annotations

import math
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher.telemetry import multiprocess
from dispatcher.telemetry.multiprocess import DIR_VARIABLE, SEAT_VARIABLE
from dispatcher.telemetry.request_log import Lines, log_handler

NOTIFY_S = 1.0

# gunicorn checks its workers once a second. After a gap this long between two checks the whole
# container was frozen, and the workers get as long again to report.
FROZEN_S = 5.0


def on_starting(server: Any) -> None:
    """Prepare the log and the counters; keep frozen workers from being killed."""
    if os.environ.get("LOG_FORMAT") == "json":
        server.log.error_log.handlers = [log_handler(Lines("gunicorn", as_json=True))]
    server.murder_workers = skip_after_freeze(server.murder_workers)
    generations = Generations(server)
    server.manage_workers, server.handle_hup = generations.manage, generations.begin
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


class Generations:
    """Replaces web workers without a gap, in the place of what gunicorn does at SIGHUP.

    gunicorn ends the old workers as soon as it has forked the new ones, which import for seconds:
    until then nobody answers, not even /ping. And it waits for the old ones, so that it neither
    sees a dead worker nor a signal as long as their requests take.
    """

    def __init__(self, server: Any) -> None:
        self.server = server
        self.last_old = 0  # the age of the youngest worker that is to be replaced

    def begin(self) -> None:
        """Start a new generation of workers, for a SIGHUP."""
        self.last_old = self.server.worker_age
        self.manage()

    def manage(self) -> None:
        """Start the workers that are missing; end the old ones once all new ones have booted."""
        workers = sorted(self.server.WORKERS.values(), key=lambda one: one.age)
        new = [one for one in workers if one.age > self.last_old]
        for _ in range(len(new), self.server.num_workers):
            self.server.spawn_worker()
        booted = [one for one in new if os.fstat(one.tmp.fileno()).st_mode & stat.S_IXUSR]
        if len(booted) == len(new) >= self.server.num_workers:
            for one in workers[: -self.server.num_workers]:
                self.server.kill_worker(one.pid, signal.SIGTERM)


def post_worker_init(worker: Any) -> None:
    """Let the arbiter know that this worker answers requests from now on."""
    os.fchmod(worker.tmp.fileno(), stat.S_IRWXU)


def pre_fork(server: Any, worker: Any) -> None:
    """Choose the files in which a new worker counts."""
    taken = {one.seat for one in server.WORKERS.values()}
    worker.seat = min({*range(len(taken) + 1)} - taken)


def post_fork(server: Any, worker: Any) -> None:
    """Keep a slowly starting worker alive; make its files."""

    def notify() -> None:
        while not worker.booted:
            worker.notify()
            time.sleep(NOTIFY_S)

    threading.Thread(target=notify, daemon=True).start()
    os.environ[SEAT_VARIABLE] = str(worker.seat)
    try:
        multiprocess.allocate(Path(os.environ[DIR_VARIABLE]), worker.seat)
    except OSError as error:
        server.log.warning("a web worker's counts will be missing from /metrics: %s", error)
        del os.environ[DIR_VARIABLE]


def child_exit(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's signature
    """Remove a dead worker's gauges; keep its counts."""
    gauges = Path(os.environ[DIR_VARIABLE], multiprocess.GAUGES.format(worker.seat))
    gauges.unlink(missing_ok=True)
