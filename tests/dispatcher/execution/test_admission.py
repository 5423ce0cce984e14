"""Whose turn it is, with threads that wait for one another and no clock but the limits."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clients.base import Environment
from clients.errors import DeadlineExceeded, TooManyRequests
from clients.plugins.registry import Registry
from dispatcher.errors import CallerGone
from dispatcher.execution.admission import Admission
from dispatcher.execution.slots import Caller, Slot, Slots
from dispatcher.settings import read_settings
from tests.conftest import PATIENCE_S, wait_for
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Double


def soon(seconds: float = PATIENCE_S) -> float:
    return time.monotonic() + seconds


def admission(per_model: int = 16, total: int = 24, waiting: int = 64) -> Admission:
    made = Admission(per_model, per_model, waiting, 2**20)
    for turns in (made.calls, made.series):
        turns.free = turns.total = total
    return made


class Waiter:
    """A request that waits in a thread; `got` is its turn, or the error it was turned away with."""

    def __init__(
        self,
        turns: Slots,
        model: str,
        caller: Caller = Caller(),  # noqa: B008  it is immutable
        *,
        in_series: bool = False,
    ) -> None:
        self.got: Slot | Exception | None = None

        def wait() -> None:
            try:
                self.got = turns.enter(model, soon(), caller, in_series=in_series)
            except Exception as error:
                self.got = error

        self._thread = threading.Thread(target=wait, daemon=True)
        self._thread.start()

    def ended(self) -> Slot | Exception:
        self._thread.join(PATIENCE_S)
        assert self.got is not None
        return self.got


def in_line(turns: Slots, model: str, caller: Caller = Caller()) -> Waiter:  # noqa: B008  as above
    """Return one who waits, behind those who do."""
    before = turns._waiting_queue.count
    made = Waiter(turns, model, caller)
    wait_for(lambda: turns._waiting_queue.count == before + 1, "a place in the line")
    return made


def waiters(turns: Slots, model: str, count: int) -> list[Waiter]:
    """Return some that wait one behind the other."""
    return [in_line(turns, model) for _ in range(count)]


def most(turns: Slots, model: str) -> list[Slot]:
    """Take all the turns that a model may have."""
    return list(iter(lambda: turns.try_enter(model, soon()), None))


def test_one_model_leaves_a_third_to_others_and_so_do_they() -> None:
    """The dynamic threshold with two turns for each that is free: 16 of 24, then 6."""
    calls = admission().calls
    assert len(most(calls, "a")) == 16
    assert len(most(calls, "b")) == 6
    assert len(most(calls, "c")) == 2
    assert calls.free == 0


def test_two_busy_models_come_to_equal_shares() -> None:
    calls = admission().calls
    running = most(calls, "a") + most(calls, "b")
    waiting = waiters(calls, "a", 20) + waiters(calls, "b", 20)
    for turn in running:
        turn.release()
    wait_for(lambda: sum(isinstance(w.got, Slot) for w in waiting) == 20, "their turns")
    assert (calls.taken["a"], calls.taken["b"]) == (10, 10)


def test_those_who_wait_are_served_in_order_models_in_turn() -> None:
    calls = admission(1, 1, 10).calls
    running = calls.enter("a", soon())
    waiting_queue = [in_line(calls, name) for name in ("a", "a", "b", "c", "b")]
    order = []
    for _ in range(5):
        running.release()
        wait_for(lambda: any(isinstance(w.got, Slot) for w in waiting_queue), "a turn")
        served = next(w for w in waiting_queue if isinstance(w.got, Slot))
        waiting_queue.remove(served)
        running = served.ended()  # type: ignore[assignment]
        order.append(running.model)
    assert order == ["a", "b", "c", "a", "b"]


def test_a_full_line_makes_room_for_a_model_that_has_less_of_it() -> None:
    calls = admission(1, 2, 4).calls
    most(calls, "a")
    most(calls, "b")
    waiting_queue = waiters(calls, "a", 4)
    with pytest.raises(TooManyRequests):
        calls.enter("a", soon())
    for _ in range(2):  # up to as many of the one as of the other
        waiting = Waiter(calls, "b")
        wait_for(lambda: any(isinstance(w.got, TooManyRequests) for w in waiting_queue), "room")
        dropped = next(w for w in waiting_queue if w.got)
        assert dropped is waiting_queue.pop(), "the last of them"
    with pytest.raises(TooManyRequests):
        calls.enter("b", soon())
    assert waiting.got is None
    assert [w.got for w in waiting_queue] == [None, None]


def test_a_job_goes_on_before_others_whose_line_is_full_and_is_not_turned_away() -> None:
    calls = admission(1, 1, 2).calls
    running = calls.enter("a", soon())
    waiting_queue = waiters(calls, "a", 2)
    series = Waiter(calls, "a", in_series=True)
    wait_for(lambda: len(calls.queues["a"]) == 3, "the series' place")
    with pytest.raises(TooManyRequests):
        calls.enter("a", soon())
    running.release()
    turn = series.ended()
    assert isinstance(turn, Slot)
    assert [w.got for w in waiting_queue] == [None, None]
    turn.release()
    assert isinstance(waiting_queue[0].ended(), Slot)


@pytest.mark.parametrize("line", [0, 1])
def test_a_turn_that_does_not_come_in_time(line: int) -> None:
    calls = admission(1, 2, line).calls
    turn = calls.enter("a", soon())
    expected, words = (DeadlineExceeded, "waited for a slot") if line else (TooManyRequests, None)
    with pytest.raises(expected, match=words):
        calls.enter("a", soon(0.05))
    calls.enter("b", soon()).release()  # there is a turn for another model
    turn.release()
    calls.enter("a", soon()).release()  # the one who gave up is not in the line any more
    with pytest.raises(DeadlineExceeded, match="before it got a slot"):
        calls.enter("a", time.monotonic())
    assert calls.try_enter("a", time.monotonic()) is None
    assert calls.free == calls.total


def test_a_turn_that_comes_too_late_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowlySeen(Caller):
        """Whether he has left takes so long to find out that the time is over then."""

        def disconnected(self) -> bool:
            over = SimpleNamespace(monotonic=lambda: math.inf)
            monkeypatch.setattr("dispatcher.execution.slots.time", over)
            return False

    calls = admission(1, 1).calls
    running = calls.enter("a", soon())
    late = in_line(calls, "a", SlowlySeen())
    running.release()
    assert "waited for a slot" in str(late.ended())
    assert calls.free == calls.total


def test_a_caller_who_has_left_gets_no_turn_and_no_place(pair: Any) -> None:
    ours, theirs = pair
    calls = admission(1, 1, 1).calls
    running = calls.enter("a", soon())
    left = in_line(calls, "a", Caller(ours))
    with pytest.raises(TooManyRequests):
        calls.enter("a", soon())
    theirs.close()
    stayed = Waiter(calls, "a")
    assert isinstance(left.ended(), CallerGone)
    running.release()
    running = stayed.ended()  # type: ignore[assignment]
    waiting = in_line(calls, "a", Caller(ours))
    running.release()
    assert isinstance(waiting.ended(), CallerGone), "seen when the turn comes"
    assert calls.free == 1


def test_a_caller_who_talks_on_is_still_there(pair: Any) -> None:
    ours, theirs = pair
    assert not Caller(ours).disconnected()
    theirs.send(b"more")
    assert not Caller(ours).disconnected()
    theirs.close()
    assert not Caller(ours).disconnected(), "there is something to be read yet"
    ours.recv(4)
    assert Caller(ours).disconnected()


def test_nothing_is_kept_of_names_that_callers_made_up() -> None:
    calls = admission().calls
    for number in range(100):
        calls.enter(f"made up {number}", soon()).release()
    assert not calls.taken
    assert not calls.queues
    assert calls.free == calls.total


def test_large_bodies_have_a_common_limit_and_small_ones_none() -> None:
    bodies = admission().bodies
    bodies.most = 10 * 2**20
    done = bodies.take(8 * 2**20)
    with pytest.raises(TooManyRequests, match="8 MiB"):
        bodies.take(3 * 2**20)
    bodies.take(2**20)
    done()
    bodies.take(9 * 2**20)
    assert bodies.held == 9 * 2**20


def test_management_waits_in_a_line_of_its_own_and_who_looks_or_asks_does_not(
    tmp_path: Path,
) -> None:
    """Four loads and unloads at a time, and as many more as wait; all of them take long."""
    release = threading.Event()
    server = FakeTriton({f"m{number}": dict for number in range(9)})
    server.load = server.unload = lambda *_, **__: release.wait(PATIENCE_S)  # type: ignore[method-assign]
    environment = Environment(server, tmp_path)
    for number in range(9):
        (tmp_path / f"m{number}" / "1").mkdir(parents=True)
    settings = read_settings({"MODEL_SERVER_QUEUE": "2"})
    registry = Registry({"double": Double(environment)})
    client = make_app(settings, registry, environment, quiet(server)).test_client
    with ThreadPoolExecutor(16) as pool:
        try:
            changes = [pool.submit(client().post, f"/load_model/m{n}") for n in range(2)]
            changes += [pool.submit(client().delete, f"/models/m{n}") for n in range(2, 9)]
            wait_for(lambda: sum(one.done() for one in changes) == 3, "the refusals")
            assert [one.result().status_code for one in changes if one.done()] == [429] * 3
            for path in ("/ping", "/models", "/models/m0") * 3:
                assert pool.submit(client().get, path).result(PATIENCE_S).status_code == 200
            assert pool.submit(client().head, "/models").result(PATIENCE_S).status_code == 200
            answer = client().post("/infer/double", json={"payload": {"numbers": [2]}})
            assert answer.json["result"] == [4]
        finally:
            release.set()
    assert [one.result().status_code for one in changes].count(429) == 3


def test_a_caller_who_cannot_be_answered_keeps_nobody_waiting() -> None:
    calls = admission().calls
    turn = calls.enter("a", soon())
    turn.on_timeout = Mock(side_effect=OSError("no answer was written"))
    calls.answer_overdue(soon(2 * PATIENCE_S))
    with ThreadPoolExecutor() as pool, pytest.raises(DeadlineExceeded):
        pool.submit(turn.release).result(PATIENCE_S)


def test_saturation_is_the_share_of_the_turns_that_the_busiest_model_may_have() -> None:
    calls = admission().calls
    assert calls.saturation() == 0
    running = [calls.enter("a", soon()) for _ in range(4)]
    assert calls.saturation() == 4 / 16
    others = most(calls, "b")
    assert (len(others), calls.saturation()) == (14, 1.0), "no further turn for b"
    for turn in others[6:]:
        turn.release()
    assert calls.saturation() == 6 / 14
    for turn in (*running, *others[:6]):
        turn.release()
    assert calls.saturation() == 0


def test_a_model_for_which_requests_wait_saturates_a_worker() -> None:
    calls = admission().calls
    running = most(calls, "a")
    assert (len(running), calls.saturation()) == (16, 1.0)
    waiting = in_line(calls, "a")
    assert calls.saturation() == 1.0
    running.pop().release()
    assert isinstance(waiting.ended(), Slot)
    running.pop().release()
    assert calls.saturation() == 15 / 16
