"""Regions of shared memory in which large tensors go to Triton and come back.

Through gRPC a tensor of 8 MB is copied five times on its way; here the web worker writes or reads
it where Triton has it. A region is told to Triton once and used again and again, by one request at
a time. Its name is gone from /dev/shm as soon as Triton knows it; where a worker is killed before
that, the others remove what it left, and `serve` does at the end.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from clients.errors import InferenceError
from clients.triton.server import Tensors

log = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")  # noqa: S108  where Triton looks for the names it is told

MIB = 2**20

Arrays = dict[str, npt.NDArray[np.generic]]

LEAST = 256 * 1024
"""Bytes from which on a tensor is worth it."""

ALIGNED = 64  # a cache line, and what vector instructions want

AMPLE = 1024 * MIB
"""Where /dev/shm is smaller, all of it is for Triton's own hand-over to its Python backends; where
the memory is, for the models."""

PART = 1 / 8
MOST = 512 * MIB

# For so long a request that nobody waits for any more may still write its answer.
QUARANTINE_S = 600.0

SWEEP_S = 10.0

# Triton is told of a region at once: what is older than this nobody tells it of any more. (Another
# container that shares the folder may have workers that are not seen here.)
LEFT_S = 60.0

AGAIN_S = 60.0  # after a failure, until shared memory is tried again

NAME = (os.environ.get("SHARED_MEMORY_PREFIX") or "triton_dispatcher_") + "web_"
"""What the names of all regions begin with: `serve` says what its programs' names begin with."""


class Server(Protocol):
    """What Triton has to be told."""

    def register(self, name: str, size: int) -> None:
        """Map the region `name` of `size` bytes."""

    def unregister(self, name: str) -> None:
        """Forget it."""

    def registered(self) -> list[str]:
        """Return the names of all regions that it has."""


@dataclass
class Region:
    """Some bytes that this process and Triton both have.

    Args:
        name: what Triton knows it as.
        memory: the bytes.
        usable_at: on the clock of `time.monotonic()`; until then Triton may write to it.

    """

    name: str
    memory: mmap.mmap
    usable_at: float = 0.0

    @property
    def size(self) -> int:
        return len(self.memory)


def affordable(memory: int, folder: Path = FOLDER) -> int:
    """Return how many bytes may be used for tensors: 0 where there is not enough for all.

    Args:
        memory: bytes that the container may take in all. What lies in the folder counts there, and
            who goes over it is killed.
        folder: where they are taken.

    """
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    size = min(memory, status.f_blocks * status.f_frsize)
    return min(MOST, int(size * PART)) if size >= AMPLE else 0


def free_bytes(folder: Path = FOLDER) -> int:
    """Return how many bytes of shared memory are free, as far as there is any."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return sys.maxsize
    return status.f_bavail * status.f_frsize


class Regions:
    """The regions of one web worker.

    Args:
        server: where they are told.
        limit: how many bytes they may have together; 0 is for none.
        folder: where they are made.

    """

    def __init__(self, server: Server, limit: int, folder: Path = FOLDER) -> None:
        self.limit = limit
        self._off_until = 0.0
        self._server = server
        self._folder = folder
        self._free: list[Region] = []
        self._total = 0
        self._made = 0
        self._swept_at = -math.inf
        self._lock = threading.Lock()

    def take(self, size: int) -> Region | None:
        """Return a region of at least `size` bytes; `None` where there is none to be had."""
        size = -(-size // MIB) * MIB
        now = time.monotonic()
        if size > self.limit or now < self._off_until:
            return None
        with self._lock:
            usable = sorted((r for r in self._free if r.usable_at <= now), key=lambda r: r.size)
            for region in usable:
                if region.size >= size:
                    self._free.remove(region)
                    return region
            if self._total - sum(region.size for region in usable) + size > self.limit:
                return None
            dropped = []
            while self._total + size > self.limit:
                dropped.append(usable.pop())
                self._free.remove(dropped[-1])
                self._total -= dropped[-1].size
            self._total += size
            self._made += 1
            number = self._made
        for region in dropped:
            self._unregister(region.name)
        return self._make(f"{NAME}{os.getpid()}_{number}", size)

    def give_back(self, region: Region, *, idle: bool = True) -> None:
        """Let a region be taken again; later, where Triton may still write to it."""
        if not idle:
            region.usable_at = time.monotonic() + QUARANTINE_S
        with self._lock:
            self._free.append(region)

    def drop(self, region: Region) -> None:
        """Take a region that Triton does not know any more out of use."""
        with self._lock:
            self._total -= region.size

    def _make(self, name: str, size: int) -> Region | None:
        path = self._folder / name
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Taken now: memory that is missing later is a SIGBUS.
                os.posix_fallocate(opened, 0, size)
                memory = mmap.mmap(opened, size)
                self._server.register(name, size)
            finally:
                os.close(opened)
                path.unlink(missing_ok=True)
        except (OSError, InferenceError) as error:
            log.warning(
                "no shared memory for large tensors, which go through gRPC for %.0f s: %s",
                AGAIN_S,
                error,
            )
            self._off_until = time.monotonic() + AGAIN_S
            with self._lock:
                self._total -= size
            return None
        return Region(name, memory)

    def _unregister(self, name: str) -> None:
        try:
            self._server.unregister(name)
        except InferenceError:
            pass  # Triton was restarted, and knows none, or is not done with it

    def tidy(self) -> None:
        """Sweep, where the last time is a while ago."""
        if self.limit and time.monotonic() >= self._swept_at + SWEEP_S:
            self._swept_at = time.monotonic()
            self.sweep()

    def sweep(self) -> None:
        """Remove the regions of workers that are gone, and let Triton forget them.

        It refuses where it has not done yet with what such a worker asked for: the next sweep is
        soon enough.
        """
        for left in self._folder.glob(f"{NAME}*"):
            with suppress(OSError):  # another worker was sooner; or it is another user's
                if is_gone(left.name) and time.time() > left.stat().st_mtime + LEFT_S:
                    left.unlink()
        try:
            names = self._server.registered()
        except InferenceError:
            return
        for name in filter(is_gone, names):
            self._unregister(name)


def is_gone(name: str) -> bool:
    """Whether a name is of a region whose worker is gone."""
    pid = name.removeprefix(NAME).partition("_")[0]
    return name.startswith(NAME) and pid.isdigit() and not Path("/proc", pid).exists()


@dataclass(frozen=True)
class Layout:
    """The places of one call's tensors.

    Args:
        size: bytes of the region that are needed; 0 where no tensor is large.
        inputs: the place of each large input, in bytes from the start.
        outputs: place and room of each output that is foreseen to be large.
        region: where all this is.

    """

    size: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, tuple[int, int]]
    region: Region | None = field(default=None, repr=False)

    @property
    def region_name(self) -> str:
        """The region's name."""
        return self._region.name

    @property
    def _region(self) -> Region:
        if self.region is None:
            raise ValueError("the layout has no region yet")
        return self.region

    def write(self, name: str, array: npt.NDArray[np.generic]) -> None:
        """Put an input into its place, in the order of C."""
        place = np.frombuffer(self._region.memory, array.dtype, array.size, self.inputs[name])
        np.copyto(place.reshape(array.shape), array)

    def read(
        self, name: str, dtype: npt.DTypeLike, shape: Sequence[int]
    ) -> npt.NDArray[np.generic]:
        """Return a copy of an output: the region is another call's soon.

        Raises:
            ValueError: it is of a type that does not lie in memory as it is, such as texts.

        """
        offset, _ = self.outputs[name]
        flat = np.frombuffer(self._region.memory, dtype, math.prod(shape), offset)
        return flat.reshape(shape).copy()


def large(array: npt.NDArray[np.generic]) -> int:
    """Return the bytes of an array that is better handed over in shared memory, else 0."""
    return (
        array.nbytes
        if array.nbytes >= LEAST and array.dtype.kind in "biuf" and array.dtype.isnative
        else 0
    )


def layout_of(inputs: Tensors, sizes: Mapping[str, tuple[int, int]]) -> Layout:
    """Return the places for a call.

    Args:
        inputs: its tensors.
        sizes: of each output of an earlier call, the bytes and those of all inputs then. More
            input is taken to give as much more output, unless these are 0. 0 bytes stand for an
            output that goes through gRPC.

    """
    end = 0

    def place(size: int) -> int:
        nonlocal end
        start, end = end, end + -(-size // ALIGNED) * ALIGNED
        return start

    places = {name: place(size) for name, array in inputs.items() if (size := large(array))}
    sent = sum(array.nbytes for array in inputs.values())
    rooms = {
        name: -(-size * sent // before) if before else size
        for name, (size, before) in sizes.items()
    }
    outputs = {name: (place(size), size) for name, size in rooms.items() if size >= LEAST}
    return Layout(end, places, outputs)
