"""Scores of classes: probabilities, and the best ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def softmax(scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return probabilities along the last axis."""
    exact = scores.astype(np.float64)
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def best(scores: npt.NDArray[Any], count: int) -> list[tuple[int, float]]:
    """Return place and score of the best, best first; of equal ones the first.

    Args:
        scores: [classes].
        count: how many are wanted.

    """
    falling = -scores.astype(np.float64)  # as floats: unsigned numbers have no negative
    places = np.arange(falling.size)
    if count < falling.size:
        # Sorted are only those that may be among the best, with all that are as good as the last
        # of them: a vocabulary takes 2 ms otherwise. What is no number is never beyond it.
        places = places[~(falling > np.partition(falling, count - 1)[count - 1])]
    places = places[np.argsort(falling[places], kind="stable")][:count]
    return list(zip(places.tolist(), scores[places].tolist(), strict=True))
