"""Shared memory for large tensors of requests and responses.

gRPC copies a tensor of 8 MB five times; in shared memory the web worker writes it where Triton
reads it. A region is registered with Triton once, and used again and again, by one request at a
time. Its name is removed from /dev/shm as soon as Triton has mapped it. If a worker is killed
before that, another worker removes the name, or `serve` does when it stops.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from clients.errors import InferenceError
from clients.triton.server import Tensors

log = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")  # noqa: S108  where Triton looks for a region's name

MIB = 2**20

Arrays = dict[str, npt.NDArray[np.generic]]

LEAST = 256 * 1024
"""Bytes of the smallest tensor that gains from shared memory."""

ALIGNED = 64  # a cache line; vector instructions need it too

AMPLE = 1024 * MIB
"""Below this size of /dev/shm, Triton's Python backends need all of it for their own tensors; below
this size of memory, the models need all of it."""

PART = 1 / 8
MOST = 512 * MIB

# How long a request that was given up may still write its answer.
QUARANTINE_S = 600.0

SWEEP_S = 10.0

REGION_S = 2.0  # for registering a region with Triton

# A region is registered at once, so an older file belongs to no live worker. (Workers of another
# container that shares the folder are not visible here.)
LEFT_S = 60.0

AGAIN_S = 60.0  # after a failure, until shared memory is tried again

NAME = (os.environ.get("SHARED_MEMORY_PREFIX") or "triton_dispatcher_") + "web_"
"""The prefix of all names; `serve` sets the first part for all of its programs."""


@dataclass
class Region:
    """Memory that this process shares with Triton."""

    name: str  # its name in Triton
    memory: mmap.mmap  # the bytes
    usable_at: float = 0.0  # until then, by `time.monotonic()`, Triton may write to it

    @property
    def size(self) -> int:
        return len(self.memory)

    def write(self, place: int, array: npt.NDArray[np.generic]) -> None:
        """Write an array from a byte on, in C order."""
        flat = np.frombuffer(self.memory, array.dtype, array.size, place)
        np.copyto(flat.reshape(array.shape), array)

    def read(
        self, place: int, dtype: npt.DTypeLike, shape: Sequence[int]
    ) -> npt.NDArray[np.generic]:
        """Return a copy of an array, because another run will use the region."""
        flat = np.frombuffer(self.memory, dtype, math.prod(shape), place)
        return flat.reshape(shape).copy()


def affordable(memory: int, folder: Path = FOLDER) -> int:
    """Return how many bytes may be used for tensors: 0 if there is too little memory."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    size = min(memory, status.f_blocks * status.f_frsize)
    return min(MOST, int(size * PART)) if size >= AMPLE else 0


def free_bytes() -> int:
    status = os.statvfs(FOLDER)
    return status.f_bavail * status.f_frsize


class Regions:
    """The regions of one web worker."""

    def __init__(
        self, call: Callable[[str, Any, float], Any], limit: int, folder: Path = FOLDER
    ) -> None:
        self.limit = limit
        self._off_until = 0.0
        self._call = call  # calls a method of Triton's gRPC service
        self._folder = folder
        self._free: list[Region] = []
        self._total = 0
        self._made = 0
        self._swept_at = -math.inf
        self._lock = threading.Lock()

    def take(self, size: int) -> Region | None:
        """Return a region of at least `size` bytes; `None` if there is none."""
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
        """Make a region usable again; later, if Triton may still write to it."""
        if not idle:
            region.usable_at = time.monotonic() + QUARANTINE_S
        with self._lock:
            self._free.append(region)

    def drop(self, region: Region) -> None:
        """Stop using a region that is no longer registered."""
        with self._lock:
            self._total -= region.size

    def _make(self, name: str, size: int) -> Region | None:
        path = self._folder / name
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Reserved now: memory that is missing later would be a SIGBUS.
                os.posix_fallocate(opened, 0, size)
                memory = mmap.mmap(opened, size)
                request = service_pb2.SystemSharedMemoryRegisterRequest(
                    name=name, key=f"/{name}", byte_size=size
                )
                self._call("SystemSharedMemoryRegister", request, REGION_S)
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
        request = service_pb2.SystemSharedMemoryUnregisterRequest(name=name)
        with suppress(InferenceError):  # Triton was restarted, or still uses it
            self._call("SystemSharedMemoryUnregister", request, REGION_S)

    def registered(self) -> list[str]:
        request = service_pb2.SystemSharedMemoryStatusRequest()
        return list(self._call("SystemSharedMemoryStatus", request, REGION_S).regions)

    def tidy(self) -> None:
        """Sweep, at most once in `SWEEP_S`."""
        if self.limit and time.monotonic() >= self._swept_at + SWEEP_S:
            self._swept_at = time.monotonic()
            self.sweep()

    def sweep(self) -> None:
        """Remove the regions of workers that have ended, from the folder and from Triton.

        Triton refuses while it still runs a request of such a worker; the next sweep tries again.
        """
        for left in self._folder.glob(f"{NAME}*"):
            with suppress(OSError):  # another worker was faster, or it belongs to another user
                if is_gone(left.name) and time.time() > left.stat().st_mtime + LEFT_S:
                    left.unlink()
        try:
            names = self.registered()
        except InferenceError:
            return
        for name in filter(is_gone, names):
            self._unregister(name)


def is_gone(name: str) -> bool:
    """Whether a name is that of a region whose worker has ended."""
    pid = name.removeprefix(NAME).partition("_")[0]
    return name.startswith(NAME) and pid.isdigit() and not Path("/proc", pid).exists()


def large(array: npt.NDArray[np.generic]) -> int:
    """Return the bytes of an array that gains from shared memory, else 0."""
    is_plain = array.dtype.kind in "biuf" and array.dtype.isnative
    return array.nbytes if array.nbytes >= LEAST and is_plain else 0


class Layout:
    """The places of one run's large tensors in a region; `expected` has the bytes of outputs."""

    def __init__(self, inputs: Tensors, expected: Mapping[str, int]) -> None:
        self.size = 0
        self.region: Region | None = None
        self.inputs = {name: self._place(size) for name, a in inputs.items() if (size := large(a))}
        self.outputs = {name: (self._place(size), size) for name, size in expected.items()}

    def _place(self, size: int) -> int:
        start = self.size
        self.size += -(-size // ALIGNED) * ALIGNED
        return start
