"""The best of many scores, and their probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clients.tensors.scores import best, likeliest


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


@pytest.mark.parametrize("size", [1, 63, 64, 65, 640, 641, 30_522])
@pytest.mark.parametrize("kinds", [2, 1000, 1_000_000])
def test_the_best_of_many_are_those_of_a_sorted_list(size: int, kinds: int) -> None:
    scores = np.random.default_rng(size + kinds).integers(0, kinds, size).astype(np.float32)
    falling = sorted(range(size), key=lambda place: (-scores[place], place))
    for count in (1, 5, 10, 500):
        assert best(scores, count) == [(place, scores[place]) for place in falling[:count]]
    scores[falling[0]] = np.nan
    assert [place for place, _ in best(scores, 5)] == [*falling[1:], falling[0]][:5]
    assert [place for place, _ in best(scores * np.nan, 2)] == [0, 1][:size]
