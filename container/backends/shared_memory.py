"""How much of /dev/shm this process's model instance may use, as `serve` shared it out.

`container/shared_memory.py` says why. Without the variable nothing is limited.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from container.backends.model_config import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHARES = "SHARED_MEMORY_SHARES"
"""The variable: {"size": bytes in all, "models": {name: [bytes of tensors in one run, bytes to
which an instance's region is grown at once, or 0]}}."""

MIB = 2**20

AMPLE = 1024 * MIB
"""From here on models with fixed shapes are left as they are, and regions grow as is needed."""

BEGINNING = 3 * MIB // 2
"""What a region has when no tensor was in it yet: 1 MiB, and half of one for rounding up."""


class TooLarge(Exception):
    """A request needs more shared memory than its model has; the text says so."""


@dataclass
class Share:
    """What one instance may use.

    Args:
        size: bytes of shared memory that all models have together.
        tensors: bytes of tensors, in and out, that one run may have; None is without limit.
        region: bytes to which this instance's region is grown at once; 0 where it grows as is
            needed. A region that grows in steps may become twice as large as it has to be, for
            old room and new are not always used together.

    """

    size: int = 0
    tensors: int | None = None
    region: int = 0
    _one_grows: Lock = field(default_factory=Lock, repr=False, compare=False)

    @classmethod
    def of(cls, config: Mapping[str, Any], environment: Mapping[str, str]) -> Share:
        """Return the share of a configured model.

        Raises:
            ModelConfigError: there is none.

        """
        plan = json.loads(environment.get(SHARES) or "{}")
        share = cls(plan.get("size", 0), *plan.get("models", {}).get(config["name"], ()))
        if share.tensors == 0:
            raise ModelConfigError(
                f"unable to load model '{config['name']}': beside the other models there is "
                f"no room for it in {share.size // MIB} MB of shared memory (/dev/shm): start the "
                "container with more (docker run --shm-size=1g), or serve fewer models."
            )
        return share

    def reserve(self, taken: int, grow: Callable[[int], None]) -> None:
        """Grow the region, the first time that this is called, and return when it has grown.

        `taken` bytes of tensors lie in it already; `grow` takes the bytes that are to be added.
        """
        with self._one_grows:  # it never shrinks: two runs that begin together would have twice
            if self.region:
                grow(max(0, self.region - BEGINNING - taken))
            self.region = 0

    def has_room(self, needed: int) -> bool:
        """Whether so many bytes of tensors may lie in the region at a time, as far as is known."""
        return self.tensors is None or needed <= self.tensors

    def is_reserved(self, needed: int) -> bool:
        """Whether so many bytes of tensors have room that is this model's own.

        Where there is little, one that was loaded later has none.
        """
        return self.has_room(needed) and (self.tensors is not None or not 0 < self.size < AMPLE)

    def refusal(self, needed: int) -> TooLarge:
        """Return the error for a request that needs more."""
        has = "no more are free"
        if self.tensors is not None:
            has = f"the model has {self.tensors / MIB:.0f}"
        return TooLarge(
            f"this needs {needed / MIB:.0f} MB of shared memory in one run, and of the "
            f"{self.size // MIB} MB in /dev/shm {has}; "
            "send fewer or shorter items, or start the container with more "
            "(docker run --shm-size=1g)"
        )
