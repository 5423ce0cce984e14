"""The best of many scores, and their probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clients.tensors.scores import best, likeliest


def test_scores_that_are_unsigned_are_sorted_too() -> None:
    assert best(np.array([0, 200, 7, 255], np.uint8), 3) == [(3, 255), (1, 200), (2, 7)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint8])
@pytest.mark.parametrize("spread", [1, 5, 60])
def test_probabilities_are_those_of_the_whole_vocabulary(dtype: type, spread: float) -> None:
    drawn = np.random.default_rng(3).normal(size=30522) * spread
    logits = (np.abs(drawn) if dtype is np.uint8 else drawn).clip(-120, 250).astype(dtype)
    # Python's own: exactly summed, in double precision.
    exact = [float(logit) for logit in logits]
    greatest = max(exact)
    weights = [math.exp(logit - greatest) for logit in exact]
    total = math.fsum(weights)
    expected = sorted(range(len(exact)), key=lambda place: (-exact[place], place))[:7]
    found = likeliest(logits, 7)
    assert [place for place, _ in found] == expected
    for place, probability in found:
        assert probability == pytest.approx(weights[place] / total, rel=1e-6)


def test_of_equal_scores_the_first_are_best() -> None:
    scores = np.array([1, 3, 0, 3, 2, 3, 2], np.float32)
    assert best(scores, 2) == [(1, 3), (3, 3)]
    assert best(scores, 4) == [(1, 3), (3, 3), (5, 3), (4, 2)]
    assert best(scores, 99) == [(1, 3), (3, 3), (5, 3), (4, 2), (6, 2), (0, 1), (2, 0)]
    assert [place for place, _ in best(scores * np.nan, 2)] == [0, 1]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 641, 30_522])
@pytest.mark.parametrize("kinds", [2, 1000, 1_000_000])
def test_the_best_of_many_are_those_of_a_sorted_list(size: int, kinds: int) -> None:
    scores = np.random.default_rng(size + kinds).integers(0, kinds, size).astype(np.float32)
    falling = sorted(range(size), key=lambda place: (-scores[place], place))
    for count in (1, 5, 10, 500):
        assert best(scores, count) == [(place, scores[place]) for place in falling[:count]]
    scores[falling[0]] = np.nan
    assert [place for place, _ in best(scores, 5)] == [*falling[1:], falling[0]][:5]
