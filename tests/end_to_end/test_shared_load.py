"""Every web worker gets its share of the requests, the ones that start under load too."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Endpoint, descendants, wait_for
from tests.support.front import front

CALLERS = 8
RECENT = 60  # answers

REQUEST = {"modelname": "sleeps", "payload": {"seconds": [0.1]}}


def kill_a_worker(gunicorn: int, worker: int) -> None:
    assert gunicorn != worker
    os.kill(worker, signal.SIGKILL)


def replace_the_workers(gunicorn: int, _: int) -> None:
    os.kill(gunicorn, signal.SIGHUP)


def ask_until(stop: threading.Event, endpoint: Endpoint, seen: deque[int], lost: list[str]) -> None:
    while not stop.is_set():
        answer = endpoint.ask(**REQUEST)
        if answer.status == 200:
            seen.append(answer.json["result"])
        else:
            lost.append(answer.body.decode())


@pytest.mark.slow
@pytest.mark.parametrize("happens", [kill_a_worker, replace_the_workers])
def test_new_web_workers_get_requests_while_the_load_lasts(
    happens: Callable[[int, int], None], tmp_path: Path
) -> None:
    """NGINX keeps its connections to the workers, each of which leads to one of them.

    No request is lost but those of a worker that is killed.
    """
    seen, lost = deque[int](maxlen=RECENT), list[str]()
    stop = threading.Event()
    with front(tmp_path, MODEL_SERVER_WORKERS="2") as endpoint:
        gunicorn = endpoint.process.pid
        callers = [
            threading.Thread(target=ask_until, args=(stop, endpoint, seen, lost))
            for _ in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        try:
            before = wait_for_shares(seen, gunicorn, set())
            happens(gunicorn, seen[-1])
            wait_for_shares(seen, gunicorn, before)
        finally:
            stop.set()
            for caller in callers:
                caller.join()
    assert happens is kill_a_worker or lost == []


def wait_for_shares(seen: deque[int], gunicorn: int, before: set[int]) -> set[int]:
    """Wait until other workers than before have half of their fair share each; return them."""

    def shared() -> bool:
        workers, answers = descendants(gunicorn), Counter(tuple(seen))
        fair = RECENT / 2
        return workers != before and [answers[one] > fair / 2 for one in workers] == [True] * 2

    wait_for(shared, 40, lambda: f"a share for each: {Counter(seen)}, {descendants(gunicorn)}")
    return descendants(gunicorn)
