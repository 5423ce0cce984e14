"""How full a worker says that it is."""

from __future__ import annotations

from dispatcher.execution.slots import Slot
from tests.dispatcher.execution.test_admission import admission, most, soon, waiters


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
    (waiting,) = waiters(calls, "a", 1)
    assert calls.saturation() == 1.0
    running.pop().release()
    assert isinstance(waiting.ended(), Slot)
    running.pop().release()
    assert calls.saturation() == 15 / 16
