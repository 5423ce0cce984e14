"""Which way of running is followed, by rows per second that are known beforehand."""

from __future__ import annotations

from collections import Counter

from container.backends.trials import STRETCHES, TRIES, Trials


class Machine:
    """Does so many rows a second in each way, in runs of 0.1 s."""

    def __init__(self, single: float, several: float) -> None:
        self.rates = {1: single, 2: several}
        self.trials = Trials(2)
        self.now = 100.0

    def runs(self, number: int, expected: int = 8) -> Counter[int]:
        """Return how many runs there were in each way."""
        ways: Counter[int] = Counter()
        for _ in range(number):
            way, began = self.trials.at_once, self.now
            ways[way] += 1
            self.now += 0.1
            self.trials.ended(round(self.rates[way] * 0.1), way, expected, began, self.now)
        return ways

    def followed(self, expected: int = 8) -> int:
        """Return the way that nearly all runs follow."""
        (way, most), *_ = self.runs(100, expected).most_common()
        assert most > 85
        return way


def test_both_ways_are_tried_and_the_faster_one_is_followed() -> None:
    for single, several in ((110, 90), (90, 110)):
        machine = Machine(single, several)
        assert machine.trials.at_once == 2
        assert min(machine.runs(2 * TRIES * 8).values()) >= TRIES * 6  # a stretch has so many runs
        assert machine.followed() == (1 if single > several else 2)


def test_what_became_faster_is_found_out() -> None:
    machine = Machine(single=110, several=90)
    machine.runs(200)
    machine.rates = {1: 80, 2: 160}
    machine.runs(2 * STRETCHES * 8)
    assert machine.followed() == 2


def test_each_load_has_a_way_of_its_own() -> None:
    machine = Machine(single=110, several=90)
    machine.runs(200, expected=4)
    machine.rates = {1: 90, 2: 110}
    assert machine.runs(200, expected=16)[2] > 100
    machine.rates = {1: 110, 2: 90}
    assert machine.followed(expected=4) == 1
    assert machine.followed(expected=3) == 1  # by powers of two: 3 to 5 are one load
    machine.rates = {1: 90, 2: 110}
    assert machine.followed(expected=16) == 2


def test_time_in_which_nobody_asked_is_not_counted() -> None:
    machine = Machine(single=110, several=90)
    machine.runs(200)
    way = machine.trials.at_once
    for _ in range(40):  # five runs, and a pause: never a whole stretch
        assert machine.runs(5)[way] == 5
        machine.now += 10


def test_runs_that_began_in_the_other_way_are_not_counted() -> None:
    trials = Trials(2)
    now = 100.0
    for _ in range(100):  # all of them began when there was one at a time
        trials.ended(1000, 1, 8, now, now + 0.1)
        now += 0.1
    assert trials.at_once == 2
