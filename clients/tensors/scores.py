"""Scores of classes: probabilities, and the best ones."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class NotFinite(float):
    """A score that is not finite, inside of a text: what stands in an answer, and is counted.

    What writes JSON finds it where it finds other numbers that are not finite.
    """

    text: str

    def __new__(cls, score: float, text: str) -> Self:
        made = super().__new__(cls, score)
        made.text = text
        return made


def digits(score: float) -> str:
    """Return a score with six digits, as Triton writes it; `null` where it is not finite."""
    return f"{score:f}" if math.isfinite(score) else "null"


def class_text(score: float, rest: str) -> str | NotFinite:
    """Return `score:rest`, which is counted where the score is not finite."""
    text = f"{digits(score)}:{rest}"
    return text if math.isfinite(score) else NotFinite(score, text)


def best(scores: npt.NDArray[Any], count: int) -> list[tuple[int, float]]:
    """Return place and score of the best, best first; of equal ones the first.

    Args:
        scores: [classes].
        count: how many are wanted.

    """
    numbers = floats(scores)
    if count < numbers.size:
        places = not_behind(numbers, numbers, count)
    else:
        places = np.arange(numbers.size)
    places = places[np.argsort(-numbers[places], kind="stable")][:count]
    return list(zip(places.tolist(), scores[places].tolist(), strict=True))


def not_behind(
    numbers: npt.NDArray[Any], some: npt.NDArray[Any], count: int
) -> npt.NDArray[np.intp]:
    """Return the places of those that are as good as the best `count` of some."""
    last = -np.partition(-some, count - 1)[count - 1]
    return np.flatnonzero(~(numbers < last))


def likeliest(logits: npt.NDArray[Any], count: int) -> list[tuple[int, float]]:
    """Return place and probability of the likeliest, likeliest first; of equal ones the first.

    The probability is the softmax over all classes. It is exact to a millionth of itself: the sum
    is of exponentials in single precision, which take a quarter of the time of double ones where
    the processor has no AVX-512.

    Args:
        logits: [classes].
        count: how many are wanted.

    """
    logits = floats(logits)
    greatest = logits.max()
    with np.errstate(invalid="ignore"):  # infinity less infinity is no number
        shares = logits - greatest
        # In their place: the caches are another model's by now, and a new array comes from memory.
        total = np.exp(shares, out=shares).sum(dtype=np.float64)
        return [
            (place, float(np.exp(np.float64(logit) - greatest) / total))
            for place, logit in best(logits, count)
        ]


def floats(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers as floats of single precision, or of double where that would lose some."""
    return numbers.astype(np.result_type(numbers, np.float32), copy=False)
