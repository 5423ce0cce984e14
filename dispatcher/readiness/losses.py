"""Which models have lost some of their processes, while others live.

Triton never revives a process. The others of the model answer on, the example too, but Triton goes
on giving the lost one requests, which fail after a second, one by one. So processes are counted and
compared with the instances that the model's configuration asks for: whoever looks finds the same,
also one who was not there when the process died, and a load that failed beside them is no loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clients.errors import InferenceError
from clients.triton.server import ModelServer

LASTING_S = 3.0
"""Shorter than that processes are fewer while a model is loaded or unloaded."""


@dataclass(frozen=True)
class Loss:
    """A model's processes, fewer than its instances, and when they were found so first and last."""

    since: float
    seen: float
    left: int
    instances: int


class Losses:
    """Counts them.

    Args:
        server: what configurations are asked of.
        clock: in seconds.

    """

    def __init__(
        self,
        server: ModelServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._clock = clock
        self._starts = 0
        self._whole: dict[str, tuple[int, int]] = {}
        self._lost: dict[str, Loss] = {}

    def look(
        self, starts: int, ready: Mapping[str, int], living: Mapping[str, int], *, timeout: float
    ) -> None:
        """Compare the processes of the models that are ready with their configurations.

        Args:
            starts: how often Triton was started.
            ready: how many versions of each of them are.
            living: how many processes each has. A model that is not in Python has none.
            timeout: seconds that Triton has for a configuration.

        """
        if starts != self._starts:
            self._starts, self._whole, self._lost = starts, {}, {}
        for model in self._lost.keys() - (living.keys() & ready.keys()):
            del self._lost[model]
        for model, versions in ready.items():
            left = living.get(model, 0)
            if not left or self._whole.get(model) == (left, versions):
                continue
            try:
                instances = versions * self._server.instances(model, timeout=timeout)
            except InferenceError:
                continue  # it is being loaded or unloaded: what is lasting is found later
            if left >= instances:
                self._whole[model] = left, versions
                self._lost.pop(model, None)
            else:
                self._whole.pop(model, None)
                now = self._clock()
                since = self._lost[model].since if model in self._lost else now
                self._lost[model] = Loss(since, now, left, instances)

    def of(self, model: str, starts: int) -> str:
        """Return what a model has lost since this start of Triton; nothing where it has not."""
        loss = self._lost.get(model)
        if not loss or starts != self._starts or loss.seen < loss.since + LASTING_S:
            return ""
        return f"{loss.left} of its {loss.instances} processes are left"
