"""Who shares a run with whom, and who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Queue

import pytest
from queues import NOT_S, nothing_comes

from container.backends import batcher
from container.backends.batcher import ALIKE, Batcher
from container.backends.padding import OWN_RUN

SOON_S = 10  # what is waited for comes much sooner


@dataclass(frozen=True)
class Request:
    name: str
    rows: int = 1
    key: object = ()
    length: int = 0


class Model:
    """Runs last until they are told to end."""

    def __init__(self) -> None:
        self.begun: Queue[list[str]] = Queue()
        self.ends: dict[str, threading.Event] = {}
        self.sent: Queue[tuple[list[str], list[str]]] = Queue()
        self.sends = threading.Event()
        self.sends.set()
        self.alone: list[str] = []

    def run_alone(self, requests: Sequence[Request]) -> list[str]:
        self.alone += [request.name for request in requests]
        return self.run(requests)

    def run(self, requests: Sequence[Request]) -> list[str]:
        names = [request.name for request in requests]
        end = self.ends[names[0]] = threading.Event()
        self.begun.put(names)
        assert end.wait(SOON_S)
        return [f"answer to {name}" for name in names]

    def send(self, requests: Sequence[Request], answers: list[str]) -> None:
        assert self.sends.wait(SOON_S)
        self.sent.put(([request.name for request in requests], answers))

    def end(self, name: str) -> None:
        self.ends.pop(name).set()

    def next(self) -> list[str]:
        return self.begun.get(timeout=SOON_S)

    def nothing_begins(self) -> bool:
        return nothing_comes(self.begun)


@dataclass
class Instance:
    batcher: Batcher[Request, list[str]]
    model: Model

    def put(self, *asked: str | Request) -> threading.Thread:
        """As Triton does, which waits until the instance takes more."""
        requests = [Request(one) if isinstance(one, str) else one for one in asked]
        thread = threading.Thread(target=self.batcher.put, args=(requests,), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def started() -> Iterator[Callable[..., Instance]]:
    """Make batchers; with `waits` they wait for ever for who is expected, otherwise not at all."""
    made: list[Instance] = []
    with pytest.MonkeyPatch.context() as patch:

        def start(
            max_batch_size: int = 16,
            *,
            waits: bool = False,
            at_once: int = batcher.AT_ONCE,
            few: int = 0,
            most: int | None = None,
            long_s: float = SOON_S,
            crowded: Callable[[], bool] = lambda: False,
        ) -> Instance:
            for patience in ("PATIENCE", "COMMON_PATIENCE"):
                patch.setattr(batcher, patience, 1e9 if waits else 0)
            patch.setattr(batcher, "MOST_PATIENCE_S", SOON_S)
            patch.setattr(batcher, "LONG_S", long_s)
            model = Model()
            runs = model.run, model.run_alone, model.send
            gathered = Batcher(*runs, max_batch_size, at_once, few, most, crowded)
            made.append(Instance(gathered, model))
            return made[-1]

        yield start
        for instance in made:
            closing = threading.Thread(target=instance.batcher.close)
            closing.start()
            while closing.is_alive():
                for name in list(instance.model.ends):
                    instance.model.end(name)
                closing.join(0.01)


def busy(instance: Instance) -> None:
    """Begin two runs, which is all that there are at a time."""
    for name in ("a", "b"):
        instance.put(name)
        assert instance.model.next() == [name]


def test_there_are_two_runs_at_a_time_and_triton_waits_for_one_to_end(
    started: Callable[..., Instance],
) -> None:
    instance = started()
    busy(instance)
    waiting = instance.put("c")
    assert instance.model.nothing_begins()
    assert waiting.is_alive()
    instance.model.end("a")
    assert instance.model.next() == ["c"]


def test_each_run_takes_its_part_of_all_that_are_there(started: Callable[..., Instance]) -> None:
    instance = started()
    busy(instance)
    instance.put("c", "d", "e", "f", "g", "h")  # eight in all
    instance.model.end("a")
    assert instance.model.next() == ["c", "d", "e", "f"]
    instance.model.end("b")
    assert instance.model.next() == ["g", "h"]


def test_a_run_waits_for_those_that_were_there_before(started: Callable[..., Instance]) -> None:
    instance = started(waits=True)
    busy(instance)
    instance.put("c", "d", "e", "f", "g", "h")
    instance.model.end("a")
    assert instance.model.next() == ["c", "d", "e", "f"]
    instance.model.end("b")
    assert instance.model.nothing_begins()
    instance.put("b again")
    assert instance.model.nothing_begins()
    instance.put("a again")
    assert instance.model.next() == ["g", "h", "b again", "a again"]


@pytest.mark.parametrize(("most", "waits"), [(4, False), (None, True)])
def test_a_small_run_does_not_wait_for_those_that_run(
    started: Callable[..., Instance], most: int | None, waits: bool
) -> None:
    instance = started(waits=True, most=most)
    instance.put("before")  # how long a run takes is known then
    assert instance.model.next() == ["before"]
    instance.model.end("before")
    instance.model.sent.get(timeout=SOON_S)
    instance.put("a", "b", "c", "d", "e")
    assert instance.model.next() == ["a", "b", "c"]
    if waits:
        assert instance.model.nothing_begins()
        instance.model.end("a")
        instance.put("a again")
        assert instance.model.next() == ["d", "e", "a again"]
    else:
        assert instance.model.next() == ["d", "e"]


def test_who_asks_again_before_all_are_answered_is_counted_once(
    started: Callable[..., Instance],
) -> None:
    instance = started(waits=True)
    busy(instance)
    instance.model.sends.clear()
    instance.model.end("a")  # whose answer is being sent
    time.sleep(NOT_S)
    instance.put("a again")
    assert instance.model.nothing_begins()  # for there is no thread
    instance.model.sends.set()
    assert instance.model.next() == ["a again"]
    assert instance.model.sent.get(timeout=SOON_S) == (["a"], ["answer to a"])


def test_rows_are_counted_and_no_run_has_more_than_it_may(
    started: Callable[..., Instance],
) -> None:
    instance = started(4)
    busy(instance)
    instance.put(Request("c", 3), Request("d", 3), Request("e", 1), Request("f", 1))
    instance.model.end("a")
    assert instance.model.next() == ["c", "e"]
    instance.model.end("b")
    assert instance.model.next() == ["d", "f"]


def test_no_more_rows_are_gathered_than_are_wanted(started: Callable[..., Instance]) -> None:
    instance = started(most=2)
    busy(instance)
    instance.put("c", "d", "e", "f", "g", "h")
    instance.model.end("a")
    assert instance.model.next() == ["c", "d"]
    instance.model.end("b")
    assert instance.model.next() == ["e", "f"]


def test_small_runs_are_not_gathered_before_each_has_two(started: Callable[..., Instance]) -> None:
    instance = started(most=4)
    instance.put("a", "b", "c")
    assert instance.model.next() == ["a"]
    assert instance.model.next() == ["b"]
    instance.put("d")
    instance.model.end("a")
    assert instance.model.next() == ["c", "d"]


def test_with_one_run_at_a_time_it_waits_for_all(started: Callable[..., Instance]) -> None:
    instance = started(waits=True, at_once=1)
    instance.put("a")
    assert instance.model.next() == ["a"]
    instance.put("b", "c")
    assert instance.model.nothing_begins()
    instance.model.end("a")
    assert instance.model.nothing_begins()
    instance.put("a again")
    assert instance.model.next() == ["b", "c", "a again"]


def short(name: str, length: int = 9) -> Request:
    return Request(name, length=length)


def ended(instance: Instance, name: str, *, left: int = 0) -> None:
    """End a run, and return when it is over, shortly after its answers are sent."""
    instance.model.end(name)
    until = time.monotonic() + SOON_S
    while len(instance.batcher._begun) > left and time.monotonic() < until:
        time.sleep(0.001)


def after_others_like_it(instance: Instance, runs: int = ALIKE + 1) -> None:
    """Run one text of 9 tokens after the other."""
    for _ in range(runs):
        instance.put(short("before"))
        assert instance.model.next() == ["before"]
        ended(instance, "before")
    instance.model.alone.clear()


class TestFewTokens:
    """All share one run with all cores, where so few tokens are there and expected."""

    def test_they_wait_for_their_turn_and_for_all(self, started: Callable[..., Instance]) -> None:
        instance = started(waits=True, few=27)
        after_others_like_it(instance)
        instance.put(short("a"))
        assert instance.model.next() == ["a"]
        waiting = instance.put(short("b"), short("c"))
        assert instance.model.nothing_begins()
        assert waiting.is_alive()
        instance.model.end("a")
        assert instance.model.nothing_begins()
        waiting.join(SOON_S)
        assert not waiting.is_alive(), "Triton is to hand over who comes back"
        instance.put(short("a again"))
        assert instance.model.next() == ["b", "c", "a again"]
        assert instance.model.alone == ["a", "b", "c", "a again"]

    @pytest.mark.parametrize(
        "beside",
        [
            [short("b", 19)],
            [short("b"), short("c"), short("d")],
            [Request("b", rows=3, length=9)],
            [short("b", 1), short("c", 10)],
            [short("b", 1), short("c", 2 + OWN_RUN)],
            [Request("b", length=9, key="b")],
            [Request("b")],
        ],
        ids=[
            "long",
            "many",
            "a list",
            "long once filled up",
            "far apart",
            "another",
            "of no length",
        ],
    )
    def test_others_are_run_beside(
        self, started: Callable[..., Instance], beside: list[Request]
    ) -> None:
        instance = started(few=27 if beside[-1].length <= OWN_RUN else 3 * beside[-1].length)
        after_others_like_it(instance)
        instance.put(short("a"))
        assert instance.model.next() == ["a"]
        instance.put(*beside)
        assert instance.model.next()[0] == "b"
        assert instance.model.alone == ["a"]

    def test_not_where_a_run_cannot_have_them_all(self, started: Callable[..., Instance]) -> None:
        instance = started(1, few=27)
        after_others_like_it(instance)
        for name in ("a", "b"):
            instance.put(short(name))
            assert instance.model.next() == [name]

    def test_their_lengths_may_differ(self, started: Callable[..., Instance]) -> None:
        """Side by side the second would not join the first: it adds 16 tokens of filling."""
        instance = started(waits=True, few=80)
        after_others_like_it(instance)
        instance.put(short("a", 4))
        assert instance.model.next() == ["a"]
        instance.put(short("b", 4), short("c", 20))
        assert instance.model.nothing_begins()
        ended(instance, "a")  # who has no answer yet cannot ask again
        instance.put(short("a again", 9))
        assert instance.model.next() == ["b", "c", "a again"]
        assert instance.model.alone == ["a", "b", "c", "a again"]

    def test_the_first_that_are_unlike_those_before_share_the_cores(
        self, started: Callable[..., Instance]
    ) -> None:
        instance = started(few=80)
        after_others_like_it(instance)
        instance.put(*(Request(name, length=9, key="other") for name in ("a", "b")))
        assert sorted([instance.model.next(), instance.model.next()]) == [["a"], ["b"]]
        assert instance.model.alone == []

    @pytest.mark.parametrize("runs", [ALIKE - 2, 0])
    def test_only_where_those_before_were_like_them(
        self, started: Callable[..., Instance], runs: int
    ) -> None:
        instance = started(few=27)
        after_others_like_it(instance)
        instance.put(short("long", 28))
        assert instance.model.next() == ["long"]
        ended(instance, "long")
        after_others_like_it(instance, runs)
        instance.put(short("a"))
        assert instance.model.next() == ["a"]
        instance.put(short("b"))
        assert instance.model.next() == ["b"]

    def test_not_where_others_of_the_container_had_all_cores(
        self, started: Callable[..., Instance]
    ) -> None:
        others: list[str] = []
        instance = started(few=27, crowded=lambda: bool(others))
        after_others_like_it(instance)
        others.append("a run for each core")
        for name in ("a", "b"):
            instance.put(short(name))
            assert instance.model.next() == [name]
        others.clear()
        ended(instance, "a", left=1)
        ended(instance, "b")
        after_others_like_it(instance)
        instance.put(short("a"))
        assert instance.model.next() == ["a"]
        instance.put(short("b"))
        assert instance.model.nothing_begins()

    def test_nobody_waits_longer_for_a_long_run_and_who_comes_later_not_at_all(
        self, started: Callable[..., Instance]
    ) -> None:
        long_s = 3 * NOT_S
        instance = started(few=36, long_s=long_s)
        after_others_like_it(instance)
        instance.put(short("long"))
        assert instance.model.next() == ["long"]
        began = time.monotonic()
        instance.put(short("a"))
        assert instance.model.nothing_begins()
        assert instance.model.next() == ["a"]
        assert time.monotonic() - began > 2 * NOT_S
        waiting = instance.put(short("b"))
        assert instance.model.nothing_begins()
        assert waiting.is_alive(), "there are two runs at most"
        instance.model.end("a")
        again = time.monotonic()
        assert instance.model.next() == ["b"]
        assert time.monotonic() - again < long_s


def test_one_that_is_larger_than_a_part_is_run_alone(started: Callable[..., Instance]) -> None:
    instance = started()
    busy(instance)
    instance.put(Request("c", 16), Request("d", 16))
    instance.model.end("a")
    assert instance.model.next() == ["c"]


def test_the_first_that_waits_is_run_first_with_those_like_it(
    started: Callable[..., Instance],
) -> None:
    instance = started()
    busy(instance)
    lengths = {"c": 9, "d": 12, "e": 9, "f": 12}
    instance.put(*(Request(name, key=length) for name, length in lengths.items()))
    instance.model.end("a")
    assert instance.model.next() == ["c", "e"]
    instance.model.end("b")
    assert instance.model.next() == ["d", "f"]


def test_who_would_fill_up_a_run_by_too_much_waits_for_the_next(
    started: Callable[..., Instance],
) -> None:
    """Beside one of 9, one of 15 adds 6 to it; one of 8 adds 7 then, and one of 10 adds 5."""
    instance = started()
    busy(instance)
    lengths = {"c": 9, "d": 16, "e": 15, "f": 8, "g": 10, "h": 15}
    instance.put(*(Request(name, length=length) for name, length in lengths.items()))
    instance.model.end("a")
    assert instance.model.next() == ["c", "e", "g", "h"]
    instance.model.end("b")
    assert instance.model.next() == ["d"]
    instance.model.end("c")
    assert instance.model.next() == ["f"]


def test_what_is_filled_up_is_counted_for_every_row(started: Callable[..., Instance]) -> None:
    """One of 12 would lengthen 3 rows by 3 each; 4 rows of 8 lack 1 each."""
    instance = started()
    busy(instance)
    instance.put(Request("c", 3, length=9), Request("d", 1, length=12), Request("e", 4, length=8))
    instance.model.end("a")
    assert instance.model.next() == ["c"]
    instance.model.end("b")
    assert instance.model.next() == ["d"]
    instance.put(Request("f", 2, length=10), Request("g", 2, length=13))
    instance.model.end("c")
    assert instance.model.next() == ["e"]
    instance.model.end("d")
    assert instance.model.next() == ["f", "g"]


def test_who_has_nothing_to_be_run_waits_until_a_run_could_begin(
    started: Callable[..., Instance],
) -> None:
    instance = started()
    busy(instance)
    waiting = instance.put()
    waiting.join(NOT_S)
    assert waiting.is_alive()
    instance.model.end("a")
    waiting.join(SOON_S)
    assert not waiting.is_alive()
    assert instance.model.nothing_begins()


def test_who_is_alone_is_run_by_the_caller(started: Callable[..., Instance]) -> None:
    instance = started()
    assert instance.batcher.alone([Request("a")])
    instance.put("a")
    assert instance.model.next() == ["a"]
    assert not instance.batcher.alone([Request("b")])


@pytest.mark.parametrize(("took_s", "others"), [(100.0, True), (1e-6, False)])
def test_who_comes_right_after_a_lone_one_has_waited_for_it(
    started: Callable[..., Instance],
    monkeypatch: pytest.MonkeyPatch,
    took_s: float,
    others: bool,
) -> None:
    """Triton hands it over at once; who asks anew needs a while."""
    monkeypatch.setattr(batcher, "MOST_WAITED_S", SOON_S)
    instance = started()
    assert instance.batcher.alone([Request("a")])
    instance.batcher.ran(took_s)
    assert instance.batcher.alone([Request("b")]) is not others
    if others:
        instance.put("b")
        assert instance.model.next() == ["b"]
        instance.put("a again")
        assert instance.model.next() == ["a again"]


def test_a_lone_one_that_asks_anew_is_alone_however_long_its_run_was(
    started: Callable[..., Instance],
) -> None:
    instance = started()
    for _ in range(3):
        assert instance.batcher.alone([Request("a")])
        instance.batcher.ran(100.0)
        time.sleep(0.002)


def test_a_run_for_everybody_is_not_made_small(started: Callable[..., Instance]) -> None:
    instance = started(most=2, few=99, waits=True)
    instance.batcher._alike = ALIKE
    instance.batcher._expected = 3
    instance.put(*(Request(name, length=9) for name in ("a", "b", "c")))
    assert instance.model.next() == ["a", "b", "c"]
    assert instance.model.alone == ["a", "b", "c"]


def test_those_who_share_no_run_are_not_run_by_the_caller(
    started: Callable[..., Instance],
) -> None:
    """Each waits for its own run then, and has its answer after it."""
    instance = started()
    assert instance.batcher.alone([Request("a", key=9), Request("b", key=9)])
    assert not instance.batcher.alone([Request("a", key=9), Request("b", key=9), Request("c")])


def test_nobody_is_alone_while_answers_are_sent(started: Callable[..., Instance]) -> None:
    instance = started()
    instance.put("a")
    assert instance.model.next() == ["a"]
    instance.model.sends.clear()
    instance.model.end("a")
    time.sleep(NOT_S)
    assert not instance.batcher.alone([Request("many", 16)])
    instance.model.sends.set()
    instance.model.sent.get(timeout=SOON_S)
    until = time.monotonic() + SOON_S
    while not instance.batcher.alone([Request("many", 16)]):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_who_has_gone_away_is_forgotten(started: Callable[..., Instance]) -> None:
    instance = started()
    instance.put("a", "b", "c", "d")
    assert sorted([*instance.model.next(), *instance.model.next()]) == ["a", "b", "c", "d"]
    instance.model.end("a")
    instance.model.end("c")
    for _ in range(20):
        time.sleep(0.01)  # a run ends shortly after its answers are sent
        if instance.batcher.alone([Request("e")]):
            return
        instance.put("e")
        instance.model.end(instance.model.next()[0])
    pytest.fail("four are still expected after twenty runs of one")


def test_who_stays_alone_after_others_is_run_as_such(started: Callable[..., Instance]) -> None:
    """From the second run on: the first may only be ahead of those who come back."""
    instance = started()
    busy(instance)
    ended(instance, "a", left=1)
    ended(instance, "b")
    for name in ("c", "d", "e"):
        instance.put(name)
        assert instance.model.next() == [name]
        if name == "e":
            instance.put("beside e")
            assert instance.model.next() == ["beside e"]
            ended(instance, "beside e", left=1)
        ended(instance, name)
    instance.put("f")
    assert instance.model.next() == ["f"]
    assert instance.model.alone == ["d", "e"]


def test_what_waits_is_answered_before_the_end(started: Callable[..., Instance]) -> None:
    instance = started(waits=True)
    busy(instance)
    instance.put("c")
    closing = threading.Thread(target=instance.batcher.close)
    closing.start()
    instance.model.end("a")
    assert instance.model.next() == ["c"]
    instance.model.end("b")
    instance.model.end("c")
    closing.join(SOON_S)
    assert not closing.is_alive()
