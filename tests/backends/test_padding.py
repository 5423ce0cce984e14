"""Which requests of unequal lengths had better share a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from container.backends.padding import OWN_RUN, near

Array = NDArray[Any]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_groups_cost_less(seed: int) -> None:
    """All partitions of up to seven rows are tried."""
    generator = np.random.default_rng(seed)
    own = generator.integers(1, generator.choice([8, 40, 200]), generator.integers(1, 8))
    groups = [group.tolist() for group in near(own)]
    assert sorted(row for group in groups for row in group) == list(range(len(own)))
    assert all(group == sorted(group) for group in groups)
    least = min(cost(own, some) for some in partitions(list(range(len(own)))))
    assert cost(own, groups) == least


def cost(own: Array, groups: Sequence[Sequence[int]]) -> int:
    return sum(OWN_RUN + len(group) * max(int(own[row]) for row in group) for group in groups)


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    first, *others = rows
    for some in partitions(others):
        yield [[first], *some]
        for index, group in enumerate(some):
            yield [*some[:index], [first, *group], *some[index + 1 :]]
