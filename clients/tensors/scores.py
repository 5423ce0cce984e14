"""Scores of classes: probabilities, and the best ones."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class NotFinite(float):
    """A text of an answer that contains a score which is not finite.

    It is a float, so that the JSON encoder finds and counts it with other numbers that are not
    finite.
    """

    text: str

    def __new__(cls, score: float, text: str) -> Self:
        made = super().__new__(cls, score)
        made.text = text
        return made


def digits(score: float) -> str:
    """Return a score with six digits, as Triton writes it; `null` if not finite."""
    return f"{score:f}" if math.isfinite(score) else "null"


def class_text(score: float, rest: str) -> str | NotFinite:
    """Return `score:rest`, as NotFinite if the score is not finite."""
    text = f"{digits(score)}:{rest}"
    return text if math.isfinite(score) else NotFinite(score, text)


def best(scores: npt.NDArray[Any], count: int) -> list[tuple[int, float]]:
    """Return index and score of the best of [classes], best first; of equals the first."""
    numbers = floats(scores)
    places = np.arange(numbers.size)
    if count < numbers.size:  # not less than the best `count`
        last = -np.partition(-numbers, count - 1)[count - 1]
        places = np.flatnonzero(~(numbers < last))
    places = places[np.argsort(-numbers[places], kind="stable")][:count]
    return list(zip(places.tolist(), scores[places].tolist(), strict=True))


def likeliest(logits: npt.NDArray[Any], count: int) -> list[tuple[int, float]]:
    """Return index and probability of the likeliest of [classes], likeliest first.

    The probability is the softmax over all classes, exact to a millionth of itself: exponentials
    are computed in single precision, in a quarter of the time of double precision on a processor
    without AVX-512. Of equal ones the first class comes first. Of one class alone it is the
    sigmoid, since its softmax would always be 1.
    """
    if logits.size == 1:
        return [(0, float(sigmoid(logits).item()))]
    logits = floats(logits)
    greatest = logits.max()
    with np.errstate(invalid="ignore"):  # infinity less infinity is not a number
        shares = logits - greatest
        # In place: a new array would come from memory, since other models use the caches.
        total = np.exp(shares, out=shares).sum(dtype=np.float64)
        return [
            (place, float(np.exp(np.float64(logit) - greatest) / total))
            for place, logit in best(logits, count)
        ]


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the probability of each class by itself, whatever those of the others are."""
    with np.errstate(over="ignore"):  # of a very small one: 1 by infinity is 0
        return 1 / (1 + np.exp(-logits.astype(np.float64)))


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the probabilities of all classes, which are the last axis."""
    exact = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity is not a number
        shares = np.exp(exact - exact.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def floats(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers in single precision, or in double if single would round some."""
    return numbers.astype(np.result_type(numbers, np.float32), copy=False)
