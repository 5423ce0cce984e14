"""The share of /dev/shm that this process's model instance may use.

`container/repository/shared_memory_plan.py` says why. Without the variable nothing is limited.

A model that is loaded later is not in its plan. If /dev/shm is small, the model takes its share of
the free part when it is loaded, or is not loaded at all: it cannot get more afterwards, and Triton
never ends a request that does not fit.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from glob import iglob
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from backends.machine.shared_folder import find_shared_folder, hold_lock
from backends.model_config import DYNAMIC, ModelConfigError, instance_count, max_batch_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SHARES = "SHARED_MEMORY_SHARES"
"""The variable: {"size": bytes in all, "models": {name: [bytes of tensors in one run, bytes to
which an instance's region is grown at once, or 0]}}."""

PREFIX = "SHARED_MEMORY_PREFIX"
"""The variable: what the names of this Triton's regions begin with; without it none are counted."""

MIB = 2**20

AMPLE = 1024 * MIB
"""From here on models with fixed shapes are left as they are, and regions grow as is needed."""

BEGINNING = 3 * MIB // 2
"""What a region has when no tensor was in it yet: 1 MiB, and half of one for rounding up."""

PART_OF_A_MODEL = 1 / 8
"""What a model with fixed shapes may have where there is less, unless one item needs more; and
what is kept for one that is loaded later."""

SCATTERED = 1.5
"""How much larger a region has to be for the gaps that tensors of different sizes leave in it.
Under mixed load 1.3 was seen."""

HALVED = 2
"""Likewise for variable shapes: a small tensor may be in the middle of the free space."""

PLACE = "SHARED_MEMORY_FOLDER"
"""The variable: where shared memory is, if not in /dev/shm."""

FOLDER = Path(os.environ.get(PLACE) or "/dev/shm")  # noqa: S108  glibc's choice

# How long a model waits for its room: where it was loaded before, until that one is gone.
PATIENCE_S, LOOK_S = 10.0, 0.05
ENDING_S = 2.0  # how long it waits for what others have only for a moment

_BYTES = {
    **dict.fromkeys(("TYPE_BOOL", "TYPE_UINT8", "TYPE_INT8"), 1),
    **dict.fromkeys(("TYPE_UINT16", "TYPE_INT16", "TYPE_FP16", "TYPE_BF16"), 2),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_INT32", "TYPE_FP32"), 4),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_INT64", "TYPE_FP64"), 8),
}


@dataclass(frozen=True)
class ItemBytes:
    """One item of a batch: bytes of its tensors, in and out."""

    inputs: int
    outputs: int

    @classmethod
    def of(
        cls,
        inputs: Sequence[tuple[str, Sequence[int]]],
        outputs: Sequence[tuple[str, Sequence[int]]],
    ) -> ItemBytes | None:
        """Return it from types and dimensions; None where they vary or are not listed."""
        sizes = []
        for tensors in (inputs, outputs):
            if any(DYNAMIC in dims or its not in _BYTES for its, dims in tensors):
                return None
            sizes.append(sum(math.prod(dims) * _BYTES[its] for its, dims in tensors))
        return cls(*sizes) if all(sizes) else None

    def region(self, batch: int) -> int:
        """Return the bytes that a region needs for batches of a size.

        While one batch is answered, the inputs of the next are there already.
        """
        return BEGINNING + int((2 * self.inputs + self.outputs) * batch * SCATTERED)

    def batch(self, part: int, least: int, most: int) -> int:
        """Return the largest batch whose region is no larger than `part`."""
        batch = most
        while batch > least and self.region(batch) > part:
            batch -= 1
        return batch


class TooLarge(Exception):
    """A request needs more shared memory than its model has; the text says so."""


@dataclass
class Share:
    """The shared memory that one instance may use.

    `tensors` are the bytes that one run may have, in and out, None without limit; `region` those to
    which this instance's region is grown at once, 0 where it grows as is needed. One that grows in
    steps may become twice as large as necessary, because old and new space are not always used
    together. `held` is an open file of the size that the region is to grow by, which has no room of
    its own: by it models that are loaded meanwhile count what this one is going to take.
    """

    size: int = 0
    tensors: int | None = None
    region: int = 0
    held: int | None = None
    _one_grows: Lock = field(default_factory=Lock, repr=False, compare=False)
    _patience: float = field(default=PATIENCE_S, repr=False, compare=False)

    @classmethod
    def of(cls, config: Mapping[str, Any], environment: Mapping[str, str]) -> Share:
        """Return the share of a configured model; of one that was loaded later, of what is left.

        Raises ModelConfigError: there is none.
        """
        plan = json.loads(environment.get(SHARES) or "{}")
        size, planned = plan.get("size", 0), plan.get("models", {}).get(config["name"])
        later = is_scarce(size) and planned is None
        share = cls(size, *(share_of(config, size) if later else planned or ()))
        has_room = share.tensors != 0
        if has_room and share.region > BEGINNING:
            share.held = hold(share, environment, later=later)
            has_room = share.held is not None
        if not has_room:
            raise ModelConfigError(
                f"unable to load model '{config['name']}': beside the other models there is "
                f"no room for it in {size // MIB} MB of shared memory (/dev/shm): start the "
                "container with more (docker run --shm-size=1g), or serve fewer models."
            )
        return share

    def reserve(self, taken: int, grow: Callable[[int], None]) -> None:
        """Grow the region at the first call, and return when it has grown.

        The same model may have been loaded before, and be about to give its room back.

        `taken` bytes of tensors are in it already; `grow` adds bytes, and raises without room.

        Raises TooLarge: there is no room, and none has become free in a while.
        """
        with self._one_grows:  # it never shrinks: two runs that begin together would have twice
            until = time.monotonic() + self._patience
            while self.region:
                try:
                    grow(max(0, self.region - BEGINNING - taken))
                    self.region = 0
                except Exception as error:  # whatever Triton's stub raises then
                    if time.monotonic() > until:
                        self._patience = 0.0
                        raise self.refusal(self.region) from error
                    time.sleep(LOOK_S)
            if self.held is not None:
                os.close(self.held)
                self.held = None

    def has_room(self, needed: int) -> bool:
        """Whether the region holds so many bytes of tensors at a time."""
        return self.tensors is None or needed <= self.tensors

    def refusal(self, needed: int) -> TooLarge:
        """Return the error for a request that needs more."""
        return TooLarge(
            f"this needs {needed / MIB:.0f} MB of shared memory in one run, and of the "
            f"{self.size // MIB} MB in /dev/shm the model has {(self.tensors or 0) / MIB:.0f}; "
            "send fewer or shorter items, or start the container with more "
            "(docker run --shm-size=1g)"
        )


def is_scarce(size: int) -> bool:
    """Whether so many bytes are too few for models without limits."""
    return 0 < size < AMPLE


def share_of(config: Mapping[str, Any], size: int) -> tuple[int, int]:
    """Return the bytes of tensors, and of a region, for an instance of a model loaded later."""
    part = int(size * PART_OF_A_MODEL) // instance_count(config)
    if item := item_of(config):
        warmups = [int(one.get("batch_size") or 1) for one in config.get("model_warmup") or []]
        least = max([1, *warmups])
        batch = item.batch(part, least, max(least, max_batch_size(config)))
        return (item.inputs + item.outputs) * batch, item.region(batch)
    region = max(BEGINNING, part)
    return (region - BEGINNING) // HALVED, region


def item_of(config: Mapping[str, Any]) -> ItemBytes | None:
    """Return the bytes of one item; None where they vary."""
    inputs, outputs = (
        [(one["data_type"], [int(size) for size in one["dims"]]) for one in config.get(kind) or []]
        for kind in ("input", "output")
    )
    return ItemBytes.of(inputs, outputs)


def hold(share: Share, environment: Mapping[str, str], *, later: bool) -> int | None:
    """Return an unnamed file by which others count a share, until this process ends.

    A model that was loaded later waits for what others have only while they are loaded, or until
    they are gone. None where they keep what it needs.
    """
    prefix, rest = environment.get(PREFIX, ""), share.region - BEGINNING
    folder, until = find_shared_folder(environment), time.monotonic() + ENDING_S
    while True:
        with hold_lock(folder / "hold.lock") if folder else nullcontext():
            if not (later and prefix and sum_regions(prefix) + rest > share.size):
                path = FOLDER / f"{prefix or 'triton_dispatcher_'}hold_{os.getpid()}"
                opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                path.unlink()
                os.ftruncate(opened, rest)
                return opened
        if time.monotonic() > until:
            return None
        time.sleep(LOOK_S)


def sum_regions(prefix: str) -> int:
    """Return the bytes of the regions with this prefix, held ones included."""
    sizes = {}
    opened = iglob("/proc/[0-9]*/fd/*")  # noqa: PTH207  Path's fails where a process ends meanwhile
    for path in (*FOLDER.glob(f"{prefix}*"), *map(Path, opened)):
        with suppress(OSError):  # it went meanwhile, or is another user's
            if os.path.realpath(path).startswith(str(FOLDER / prefix)):
                status = path.stat()
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
