"""Requests that are run one by one, some at a time, by a model of one's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from queues import NOT_S, nothing_comes

from container.backends.side_by_side import LONG_S, SHORT_S, SideBySide

SOON_S = 10.0
AT_ONCE = 2


class Instance:
    """One whose runs end when they are told to, and take what they are said to take."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.ends: dict[str, threading.Event] = {}
        self.sent: SimpleQueue[tuple[list[str], list[str]]] = SimpleQueue()
        self.time = 0.0
        self.pool = ThreadPoolExecutor()
        self.runs = SideBySide(self.run, self.send, at_once, lambda: self.time)

    def run(self, requests: Sequence[str]) -> list[str]:
        end = self.ends.setdefault(requests[0], threading.Event())
        self.begun.put(requests[0])
        assert end.wait(SOON_S)
        return [name.upper() for name in requests]

    def send(self, requests: Sequence[str], answers: list[str]) -> None:
        self.sent.put((list(requests), answers))

    def put(self, *names: str) -> Future[None]:
        return self.pool.submit(self.runs.put, names)

    def begins(self, name: str) -> None:
        assert self.begun.get(timeout=SOON_S) == name

    def nothing_begins(self) -> bool:
        return nothing_comes(self.begun)

    def end(self, name: str, took_s: float = 1.0) -> None:
        self.time += took_s
        self.ends[name].set()
        assert self.sent.get(timeout=SOON_S) == ([name], [name.upper()])

    def knows(self, took_s: float) -> None:
        """Have one run, alone."""
        self.put("first").result(SOON_S)
        self.begins("first")
        self.end("first", took_s)


@pytest.fixture
def instance() -> Iterator[Instance]:
    one = Instance()
    yield one
    one.runs.close()


def test_as_many_run_at_a_time_as_may_and_each_is_answered_as_it_ends(instance: Instance) -> None:
    instance.knows(LONG_S / AT_ONCE)
    for name in ("a", "b"):
        instance.put(name).result(SOON_S)
        instance.begins(name)
    third = instance.put("c")
    assert instance.nothing_begins()
    assert not third.done(), "others wait in Triton's queue"
    instance.end("b")
    third.result(SOON_S)
    instance.begins("c")
    instance.end("a")
    instance.end("c")


def test_who_only_wants_to_know_whether_it_lives_waits_for_a_run_to_end(
    instance: Instance,
) -> None:
    instance.put("a").result(SOON_S)
    instance.begins("a")
    knock = instance.put()
    time.sleep(NOT_S)
    assert not knock.done()
    instance.end("a")
    knock.result(SOON_S)


def test_before_anything_is_known_one_runs_after_the_other(instance: Instance) -> None:
    instance.put("a").result(SOON_S)
    instance.begins("a")
    instance.put("b")
    assert instance.nothing_begins()
    instance.end("a")
    instance.begins("b")
    instance.end("b")


def test_runs_that_would_take_long_side_by_side_are_run_one_after_the_other(
    instance: Instance,
) -> None:
    instance.knows(1.01 * LONG_S / AT_ONCE)
    instance.put("a").result(SOON_S)
    instance.begins("a")
    instance.put("b")
    assert instance.nothing_begins()
    instance.end("a", LONG_S / AT_ONCE)
    instance.begins("b")
    instance.put("c").result(SOON_S)
    instance.begins("c")
    instance.end("c", 0.99 * LONG_S)
    instance.put("d").result(SOON_S)
    instance.begins("d")
    instance.end("b", 1.01 * LONG_S)
    instance.put("e")
    assert instance.nothing_begins(), "they took longer than was thought"
    instance.end("d")
    instance.begins("e")
    instance.end("e")


def test_how_many_run_at_a_time_is_found_out_where_runs_do_not_share_the_cores_alike() -> None:
    instance = Instance(at_once=8)
    took_s = 0.15 * LONG_S  # whoever is beside it
    instance.knows(took_s)
    for name in "abcdef":
        instance.put(name).result(SOON_S)
        instance.begins(name)
    seventh = instance.put("g")
    assert instance.nothing_begins(), "by what is known eight would take 1.2 times too long"
    instance.end("a", took_s)
    seventh.result(SOON_S)
    instance.begins("g")
    for name in "hi":
        instance.put(name).result(SOON_S)
        instance.begins(name)
    instance.put("j")
    assert instance.nothing_begins()
    for name in "bcdefghi":
        instance.end(name, 0)
    instance.begins("j")
    instance.end("j")
    instance.runs.close()


def test_only_short_runs_are_their_callers_own(instance: Instance) -> None:
    assert not instance.runs.alone(["a"]), "nothing is known yet"
    instance.runs.ran(SHORT_S / 2)
    assert instance.runs.alone(["a"])
    instance.put("a").result(SOON_S)
    instance.begins("a")
    assert not instance.runs.alone(["b"]), "there is another"
    instance.end("a", 2 * SHORT_S)
    time.sleep(NOT_S)
    assert not instance.runs.alone(["b"]), "that one was long"


def test_what_was_handed_over_is_answered_before_the_end(instance: Instance) -> None:
    instance.put("a").result(SOON_S)
    instance.begins("a")
    closing = threading.Thread(target=instance.runs.close)
    closing.start()
    closing.join(NOT_S)
    assert closing.is_alive()
    instance.end("a")
    closing.join(SOON_S)
    assert not closing.is_alive()
