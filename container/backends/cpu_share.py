"""How many threads one model instance may keep busy.

Instances times threads should not exceed the CPUs this process may use: more only take turns,
and take them from the web workers (half of the throughput is lost where they do).
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Return the CPUs of this process's affinity, or its control group's quota where lower.

    A quota of one and a half CPUs counts as one: a second thread would be throttled.
    """
    cpus = len(os.sched_getaffinity(0))
    quota = _quota(cgroups, own_cgroup)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def default_thread_count(instances: int, cpus: int | None = None) -> int:
    """Return the threads of one of so many instances: an equal share of the CPUs, at least 1."""
    return max(1, (usable_cpus() if cpus is None else cpus) // max(1, instances))


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
