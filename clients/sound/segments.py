"""The parts of a sound in which its windows' scores are high, such as speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

HYSTERESIS, LOWEST = 0.15, 0.01
"""A part ends below the threshold less the first number, as in Silero's `get_speech_timestamps`,
but not below the second."""


@dataclass(frozen=True)
class SegmentLimits:
    """When a part begins and ends; all but the score in samples."""

    threshold: float  # the least score of a part
    shortest: float  # a part has more samples
    silence: float  # so many have lower scores before it ends
    padding: float  # what is added at both ends


def find_segments(
    scores: Sequence[float], hop: int, length: int, limits: SegmentLimits
) -> list[tuple[int, int]]:
    """Return begin and end of each part, in samples of a sound that has `length`.

    `scores` are those of windows that begin `hop` samples apart. The answer is that of
    `get_speech_timestamps` of silero-vad 6.2 without a longest part.
    """
    found = [list(one) for one in find_loud(scores, hop, length, limits)]
    padding = limits.padding
    if found:
        found[0][0] = int(max(0, found[0][0] - padding))
        found[-1][1] = int(min(length, found[-1][1] + padding))
    for one, following in pairwise(found):
        gap = following[0] - one[1]
        if gap < 2 * padding:  # they meet in its middle
            one[1] += gap // 2
            following[0] -= gap // 2
        else:
            one[1] = int(one[1] + padding)
            following[0] = int(following[0] - padding)
    return [(begin, end) for begin, end in found]


def find_loud(
    scores: Sequence[float], hop: int, length: int, limits: SegmentLimits
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part, before they are padded; arguments as above."""
    low = max(limits.threshold - HYSTERESIS, LOWEST)
    begin: int | None = None
    end = 0  # where the silence begins that may end it; 0 for none
    for at, score in zip(range(0, hop * len(scores), hop), scores, strict=True):
        if score >= limits.threshold:
            begin, end = at if begin is None else begin, 0
        elif score < low and begin is not None:
            end = end or at
            if at - end >= limits.silence:
                if end - begin > limits.shortest:
                    yield begin, end
                begin, end = None, 0
    if begin is not None and length - begin > limits.shortest:
        yield begin, length
