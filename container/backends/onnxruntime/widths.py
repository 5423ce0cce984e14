"""Sessions of one model by how many cores a run of theirs has.

A session's threads are shared by all that run it at a time, and how many of them one run may have
cannot be said. So each run has a session to itself, as wide as the cores allow where so many runs
are on their way; one core each is the narrowest, and has no threads to share.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def between(cpus: int, at_once: int) -> dict[int, int]:
    """Return how many sessions of each width one instance can use besides the widest and narrowest.

    Args:
        cpus: of the container.
        at_once: the most runs of the instance at a time, 0 where Triton hands out one by one.

    """
    counts = {}
    width = cpus // 2
    while width > 1:
        counts[width] = min(max(1, at_once), cpus // width)
        width = -(-width // 2)
    return counts


class Widths:
    """Sessions over the same weights, lent to one run at a time.

    Args:
        cpus: that all runs of the container share.
        narrow: for as many runs as there are, where no other is free.
        wide: by width, the widest first.

    """

    def __init__(self, cpus: int, narrow: Any, wide: Mapping[int, Sequence[Any]]) -> None:
        self._cpus = cpus
        self._narrow = narrow
        self._free = {width: list(sessions) for width, sessions in wide.items()}

    @contextmanager
    def lent(self, runs: int) -> Iterator[Any]:
        """Lend a session to one of so many runs."""
        for width, free in self._free.items():
            if width * runs <= self._cpus:
                try:
                    session = free.pop()
                except IndexError:  # the runs of this instance are more than its part
                    continue
                try:
                    yield session
                finally:
                    free.append(session)
                return
        yield self._narrow
