"""Clients that hang and clients that end their process, through NGINX and gunicorn."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Answer, Endpoint, wait_for
from tests.support.front import front
from tests.support.sleepers import asked

SLEEPERS = "tests.support.sleepers:build()"
SHORT = {"MODEL_SERVER_TIMEOUT": "4", "SERVE_STOP_TIMEOUT": "3"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """In the end calls of `bad` hang in it."""
    with front(tmp_path_factory.mktemp("bad"), SLEEPERS, **SHORT) as endpoint:
        yield endpoint


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Endpoint]:
    with front(tmp_path, SLEEPERS, **SHORT) as endpoint:
        yield endpoint


def bad(endpoint: Endpoint, does: str, model: str = "bad") -> Answer:
    return endpoint.call(f"/infer/{model}", json.dumps({"payload": {"does": does}}))


def worker(endpoint: Endpoint) -> int:
    answer = endpoint.call("/infer/quick", '{"payload": {}}')
    assert answer.status == 200, answer.body
    return int(answer.json["result"])


@contextmanager
def steady(endpoint: Endpoint) -> Iterator[Counter[int]]:
    """Ask `quick` all the while, four callers at a time, and count the statuses."""
    statuses: Counter[int] = Counter()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            statuses[endpoint.call("/infer/quick", '{"payload": {}}').status] += 1

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        yield statuses
    finally:
        done.set()
        for caller in callers:
            caller.join()


@pytest.mark.parametrize("does", ["exit", "interrupt"])
def test_what_would_end_the_process_ends_one_request(endpoint: Endpoint, does: str) -> None:
    before = worker(endpoint)
    answer = bad(endpoint, does)
    assert (answer.status, answer.json["error"]["code"]) == (500, "client_failed")
    assert worker(endpoint) == before


def test_a_client_that_ends_the_process_is_survived(endpoint: Endpoint) -> None:
    """Requests in flight get 503, and a new worker is there within seconds."""
    before = worker(endpoint)
    with ThreadPoolExecutor(2) as pool:
        sleeping: Any = pool.submit(endpoint.call, "/infer/sleeps", '{"payload": {"seconds": 1}}')
        wait_for(lambda: asked(endpoint.log.parent), 5, "the call that sleeps")
        answer = bad(endpoint, "die")
        for one in (answer, sleeping.result()):
            assert (one.status, one.json["error"]["code"]) == (503, "unavailable")
            assert "Retry-After" in one.headers

    def back() -> bool:
        answer = endpoint.call("/infer/quick", '{"payload": {}}')
        return answer.status == 200 and answer.json["result"] != before

    wait_for(back, 10, "a fresh worker")


def test_a_client_that_hangs_is_answered_for_and_no_other_is_hurt(endpoint: Endpoint) -> None:
    """504 at the deadline, 3.6 s of 4; `quick` is answered all the while."""
    before = worker(endpoint)
    with steady(endpoint) as statuses, ThreadPoolExecutor(4) as pool:
        began = time.monotonic()
        answers = list(pool.map(lambda _: bad(endpoint, "hang"), range(4)))
        took = time.monotonic() - began
        assert 3.5 < took < 7, "all four at once"
        assert {(a.status, a.json["error"]["code"]) for a in answers} == {
            (504, "deadline_exceeded")
        }
        assert bad(endpoint, "nothing", "bad2").json["result"] == "nothing"
    assert set(statuses) == {200}
    assert worker(endpoint) == before
    wait_for(
        lambda: "time.sleep(1)" in endpoint.log.read_text(), 5, "the log to say where it hangs"
    )


def test_a_worker_that_has_lost_half_of_its_threads_is_replaced(fresh: Endpoint) -> None:
    """Two models whose clients hang: all are answered, and a fresh worker takes over."""
    before = worker(fresh)
    with steady(fresh) as statuses, ThreadPoolExecutor(12) as pool:
        calls = [("hang", model) for model in ("bad", "bad2") for _ in range(6)]
        answers = list(pool.map(lambda one: bad(fresh, *one), calls))
        assert {a.status for a in answers} == {504}
        wait_for(lambda: worker(fresh) != before, 15, "another worker")
        assert bad(fresh, "nothing").json["result"] == "nothing"
    assert set(statuses) == {200}


@pytest.mark.slow
def test_a_client_that_holds_python_s_lock_is_survived(tmp_path: Path) -> None:
    """Nothing else runs in that worker, not even what gives signs of life: it is replaced."""
    with front(tmp_path, SLEEPERS) as endpoint:
        began = time.monotonic()
        answer = bad(endpoint, "hold")
        assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
        wait_for(
            lambda: endpoint.call("/infer/quick", '{"payload": {}}').status == 200, 20, "a worker"
        )
        assert time.monotonic() - began < 30
