"""Pad requests of unequal lengths for one run, and say which had better share one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from backends.batching.item import AXIS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Numbers = NDArray[np.intp]

OWN_RUN = 30
"""What a run with all cores costs beside the arithmetic of its tokens, as so many of them.

A run of BERT-base takes as long as 20 to 30 of its tokens for reading the weights with AVX-512;
without, where arithmetic takes longer, it would be some 10, and the loss is then no more than the
arithmetic of the other 20.
"""


def near(own: ArrayLike, counts: ArrayLike | None = None) -> list[Numbers]:
    """Group rows by length so that the runs of all groups cost least.

    The group of the longest is the first. A run costs what its rows have in tokens, each as many as
    the longest, and `OWN_RUN`. Groups follow each other by length, so that the cheapest way to run
    all up to a length is found for one length after the other.

    `own` has the length of the rows at each place, `counts` how many there are; by default one.
    """
    sizes, which = np.unique(own, return_inverse=True)
    below = np.append(0, np.bincount(which, counts).cumsum())
    least = np.zeros(len(below))
    begin = np.zeros(len(below), np.intp)
    for end, longest in enumerate(sizes, start=1):
        costs = least[:end] + (below[end] - below[:end]) * longest + OWN_RUN
        begin[end] = costs.argmin()
        least[end] = costs[begin[end]]
    groups: list[Numbers] = []
    end = len(sizes)
    while end:
        groups.append(np.flatnonzero((which >= begin[end]) & (which < end)))
        end = begin[end]
    return groups


def concatenate_padded(arrays: Sequence[NDArray[Any]], number: int) -> NDArray[Any]:
    """Concatenate arrays along axis 0, padding the shorter."""
    if len({array.shape[AXIS:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    rows, longest = sum(map(len, arrays)), max(array.shape[AXIS] for array in arrays)
    one = arrays[0]
    whole = np.full((rows, longest, *one.shape[AXIS + 1 :]), number, one.dtype)
    start = 0
    for array in arrays:
        whole[start : start + len(array), : array.shape[AXIS]] = array
        start += len(array)
    return whole
