"""The memory of the container, by its control group or the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

# The parts of the container's memory for the bodies of requests: those that NGINX keeps until they
# are answered; those that web workers read; and, where they lie in memory, those of jobs.
RECEIVED_SHARE = 1 / 8
BODIES_SHARE = 1 / 16

MOUNTS = Path("/proc/self/mountinfo")
MACHINE = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def total_memory(machine: Path = MACHINE, group: Path = GROUP) -> int:
    """Return the bytes that this container may use in all, /dev/shm included."""
    return min([read_meminfo("MemTotal", machine), *(limit for limit, _ in read_cgroup(group))])


def free_memory(machine: Path = MACHINE, group: Path = GROUP) -> int:
    """Return the bytes that this container may still use."""
    left = (limit - used for limit, used in read_cgroup(group))
    return min([read_meminfo("MemAvailable", machine), *left])


def lies_in_memory(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Whether the files of a folder take memory of the container, as in `docker run --tmpfs`.

    The last file system that is mounted over a folder counts; proc_pid_mountinfo(5).
    """
    kinds: list[tuple[int, str]] = []
    text = mounts.read_text(errors="replace", encoding="utf-8") if mounts.exists() else ""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        if folder.resolve().is_relative_to(point := left.split()[4]):
            kinds.append((len(point), right.split()[0]))
    return max(reversed(kinds), key=lambda one: one[0], default=(0, ""))[1] in {"tmpfs", "ramfs"}


def trim_heap() -> None:
    """Return freed memory to the system; glibc keeps it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # in glibc only
    if trim is not None:
        trim(0)


def read_meminfo(name: str, machine: Path) -> int:
    return read_stat(machine, (f"{name}:",)) * 1024 or 2**63


def read_cgroup(group: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and usage of the control group, in bytes, where there is one.

    Copies of files do not count: the kernel frees them before it refuses memory. (Those in /dev/shm
    and on a tmpfs do: they are no files of a disk.)
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    for limit_file, used_file, stat_file, prefix in (
        ("memory.max", "memory.current", "memory.stat", ""),
        (
            *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
            *("memory/memory.stat", "total_"),
        ),
    ):
        try:
            limit = int((group / limit_file).read_text(encoding="utf-8"))
            used = int((group / used_file).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        copies = (f"{prefix}inactive_file", f"{prefix}active_file")
        yield limit, max(0, used - read_stat(group / stat_file, copies))


def read_stat(file: Path, names: tuple[str, ...]) -> int:
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return 0
    return sum(int(words[1]) for words in lines if words[0] in names)
