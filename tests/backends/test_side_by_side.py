"""Requests that are run one by one, some at a time, by a model of one's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from container.backends.side_by_side import SHORT_S, SideBySide

SOON_S = 10.0
NOT_S = 0.2


class Model:
    """Each of its runs ends when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ends: dict[str, threading.Event] = {}
        self.sent: list[tuple[list[str], list[str]]] = []

    def run(self, requests: Sequence[str]) -> list[str]:
        end = self.ends.setdefault(requests[0], threading.Event())
        self.begun.release()
        assert end.wait(SOON_S)
        return [name.upper() for name in requests]

    def send(self, requests: Sequence[str], answers: list[str]) -> None:
        self.sent.append((list(requests), answers))

    def begins(self, seconds: float = SOON_S) -> bool:
        return self.begun.acquire(timeout=seconds)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor()


def test_as_many_run_at_a_time_as_may_and_each_is_answered_as_it_ends(
    model: Model, pool: ThreadPoolExecutor
) -> None:
    runs = SideBySide(model.run, model.send, 2)
    for name in ("a", "b"):
        pool.submit(runs.put, [name]).result(SOON_S)
        assert model.begins()
    third: Future[None] = pool.submit(runs.put, ["c"])
    knock: Future[None] = pool.submit(runs.put, [])
    assert not model.begins(NOT_S)
    assert not third.done(), "others wait in Triton's queue"
    assert not knock.done(), "who only wants to know whether it lives waits as well"
    model.ends["b"].set()
    third.result(SOON_S)
    assert model.begins()
    assert model.sent == [(["b"], ["B"])]
    for name in ("a", "c"):
        model.ends[name].set()
    knock.result(SOON_S)
    runs.close()
    assert sorted(model.sent) == [(["a"], ["A"]), (["b"], ["B"]), (["c"], ["C"])]


def test_only_short_runs_are_their_callers_own(model: Model) -> None:
    runs = SideBySide(model.run, model.send, 2)
    assert not runs.alone(["a"]), "nothing is known yet"
    runs.ran(SHORT_S / 2)
    assert runs.alone(["a"])
    runs.put(["a"])
    assert model.begins()
    assert not runs.alone(["b"]), "there is another"
    assert not model.ends["a"].wait(2 * SHORT_S)
    model.ends["a"].set()
    runs.close()
    assert not runs.alone(["b"]), "that one was long"
