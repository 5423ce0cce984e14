"""How many runs at a time get most done, found out by trying.

A single run with all cores reads the model's weights once for all of its requests. Of two runs
with half of the cores each, one computes while the requests of the other are on their way. Which of
the two is faster depends on processor, model, texts and callers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

STRETCH_S = 0.5
STRETCH_RUNS = 6
"""For so long, and so many runs, one way is followed before it is judged."""

TRIES = 4
"""Stretches of each way before one is preferred."""

STRETCHES = 16
"""Of so many, one follows the other way all the same: texts become longer, machines slower."""

LEAST_WEIGHT = 0.2
"""Of the last stretch in what is known of a way. Machines have better and worse seconds."""


@dataclass
class Known:
    """What is known of a way.

    Args:
        stretches: how often it was tried.
        rate: rows per second, an average.

    """

    stretches: int = 0
    rate: float = 0.0

    def add(self, rate: float) -> None:
        """Take note of one more stretch."""
        self.stretches += 1
        self.rate += max(LEAST_WEIGHT, 1 / self.stretches) * (rate - self.rate)


class Trials:
    """Decides how many runs there are at a time: one, or several.

    What is known is kept for each load, by powers of two: few callers are another matter than many.

    Args:
        several: how many these are.

    """

    def __init__(self, several: int) -> None:
        self.several = several
        self.at_once = several
        self._load = 0
        self._known: dict[int, dict[int, Known]] = {}
        self._since = self._last = 0.0
        self._rows = self._runs = 0

    def ended(self, rows: int, at_once: int, expected: int, began: float, now: float) -> None:
        """Take note of a run that has ended, and perhaps go on in another way.

        Args:
            rows: that it had.
            at_once: how many runs there were at a time when it began.
            expected: how many rows there are in all, waiting and running.
            began: when it began, in seconds.
            now: when it ended.

        """
        load = round(log2(max(1, expected)))
        pause = began > self._last + STRETCH_S
        self._last = now
        if load != self._load:
            self._load = load
            self._choose()
        elif at_once == self.at_once and not pause:
            self._rows += rows
            self._runs += 1
            took = now - self._since
            if self._runs < STRETCH_RUNS or took < STRETCH_S:
                return
            self._of_load()[at_once].add(self._rows / took)
            self._choose()
        self._since, self._rows, self._runs = now, 0, 0

    def _of_load(self) -> dict[int, Known]:
        return self._known.setdefault(self._load, {self.several: Known(), 1: Known()})

    def _choose(self) -> None:
        known = self._of_load()
        better, other = sorted(known, key=lambda way: known[way].rate, reverse=True)
        tried = known[other].stretches
        due = tried < known[better].stretches / (1 if tried < TRIES else STRETCHES)
        self.at_once = other if due else better
