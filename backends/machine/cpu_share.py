"""Count the cores, and those of one model instance and of one run."""

from __future__ import annotations

import os
from pathlib import Path

CORES_OF_A_RUN = 4
"""More cores than these are better given to another run: on 16, of texts, four runs at a time had
1.1 to 1.2 times as many answers as two with 16 and 64 callers, and 0.9 with 4."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Return the whole CPUs of the affinity, or of the control group's quota if lower; at least 1.

    A quota of one and a half CPUs counts as one: a second thread would be throttled.
    """
    return max(1, int(cpu_limit(cgroups, own_cgroup)))


def cpu_limit(cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> float:
    """Return the CPUs of the affinity, or the control group's quota if lower, such as 1.5."""
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return float(os.cpu_count() or 1)
    cpus = float(len(os.sched_getaffinity(0)))
    quota = _quota(cgroups, own_cgroup)
    return cpus if quota is None else min(cpus, quota)


def idle_cpu_seconds(stat: Path = Path("/proc/stat")) -> float:
    """Return for how long the CPUs of the machine had nothing to do, all of them together."""
    _, _, _, _, idle, waiting, *_ = (_lines(stat) or ["cpu 0 0 0 0 0 0"])[0].split()
    return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")


def threads_of_an_instance(instances: int, cpus: int) -> int:
    """Return the threads of one of so many instances of a model, at least 1.

    All cores where they are few, for two instances are seldom busy at the same moments; of more, a
    share.
    """
    return max(min(cpus, CORES_OF_A_RUN), cpus // max(1, instances))


def _quota(cgroups: Path, own_cgroup: Path) -> float | None:
    """Return the lowest CPU quota on the way from the own control group to the root."""
    folders = [cgroups]
    for line in _lines(own_cgroup):
        # "0::/a/b" is version 2; version 1 has one line per controller, "4:cpu,cpuacct:/a/b".
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        root = cgroups if not controllers else cgroups / "cpu"
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        folders += [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    quotas = [quota for folder in folders if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _quota_in(folder: Path) -> float | None:
    fields = " ".join(_lines(folder / "cpu.max")).split()
    if not fields:
        fields = _lines(folder / "cpu.cfs_quota_us") + _lines(folder / "cpu.cfs_period_us")
    try:
        quota, period = (int(field) for field in fields)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split("\n")[:-1]
    except OSError:
        return []
