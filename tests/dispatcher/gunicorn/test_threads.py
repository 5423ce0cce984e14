"""The threads of a web worker."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from dispatcher.gunicorn.worker import ThreadPool

POOL = """
import logging, sys, threading
from gunicorn.config import Config
from dispatcher.gunicorn.worker import WebWorker

room, start = int(sys.argv[1]), threading.Thread.start

def start_where_there_is_room(thread):
    if threading.active_count() > room:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_where_there_is_room
logging.basicConfig(stream=sys.stdout, format="%(message)s")
configuration = Config()
configuration.set("threads", 8)
worker = WebWorker(1, 0, [], None, 15, configuration, logging.getLogger())
pool = worker.get_thread_pool()
print(threading.active_count() - 1)
"""


@pytest.mark.parametrize(
    ("room", "code", "said"),
    [(8, 0, "8\n"), (7, 1, "cannot start the 8 threads of a web worker")],
)
def test_a_worker_has_all_its_threads_or_does_not_begin(room: int, code: int, said: str) -> None:
    """Started by need, the one that is too many would end it with all that it has in hand."""
    ran = subprocess.run(
        [sys.executable, "-c", POOL, str(room)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout[: len(said)]) == (code, said)


def test_work_is_done_in_the_order_in_which_it_comes_and_each_has_its_own_outcome() -> None:
    begun: list[int] = []
    go = threading.Event()

    def do(number: int) -> int:
        begun.append(number)
        go.wait(20)
        return 12 // number

    pool = ThreadPool(1)
    outcomes = [pool.submit(do, number) for number in (4, 3, 0, 2)]
    go.set()
    assert isinstance(outcomes[2].exception(20), ZeroDivisionError)
    assert [outcomes[place].result(20) for place in (0, 1, 3)] == [3, 4, 6]
    assert begun == [4, 3, 0, 2]


def test_as_many_as_there_are_threads_work_at_a_time() -> None:
    pool, all_of_them = ThreadPool(8), threading.Barrier(8)
    assert sorted(p.result(20) for p in [pool.submit(all_of_them.wait, 20) for _ in range(8)]) == [
        *range(8)
    ]


def test_the_thread_that_was_busy_last_is_the_next() -> None:
    pool, seen = ThreadPool(8), list[int]()
    for _ in range(20):
        seen.append(pool.submit(threading.get_ident).result(20))
        time.sleep(0.02)  # until it is idle again
    assert len(set(seen)) <= 3
