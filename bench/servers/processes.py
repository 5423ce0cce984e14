"""Measure a container's processes: processor time and memory, from /proc."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dispatcher.status.instances import process_cpu, process_memory

PROC = Path("/proc")


def descendants(*roots: int) -> set[int]:
    """Return the process ids of all that some processes started, directly or not."""
    parents = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(
                stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found.union(roots)} - found:
        found |= more
    return found


def tree(root: int) -> Iterator[tuple[int, str]]:
    """Yield a process and all its descendants, each with what it is."""
    for pid in sorted({root, *descendants(root)}):
        try:
            name = describe_process(pid)
        except OSError:
            continue  # it has just ended
        if name:
            yield pid, name


def describe_process(pid: int) -> str:
    """Return what a process is, in a word or two; nothing for one that has ended."""
    words = (PROC / str(pid) / "cmdline").read_text(encoding="utf-8").replace("\0", " ")
    if stub := re.search(r"triton_python_backend_stub \S*/([^/ ]+)/\d+/", words):
        return f"model process of {stub[1]}"
    known = {
        "tritonserver": "Triton",
        "nginx": "NGINX",
        "gunicorn": "gunicorn",
        "container": "serve",
    }
    return next((name for word, name in known.items() if word in words), words[:60])


def cpu_ms(root: int) -> Counter[str]:
    """Return the processor time of a process and its descendants, by what they are."""
    used: Counter[str] = Counter()
    for pid, name in tree(root):
        used[name] += process_cpu(pid, children=False) * 1e3  # type: ignore[assignment]
    return used


def memory_mb(root: int) -> float:
    """Return the memory (PSS) of a process and its descendants: what some share is counted once."""
    return sum(process_memory(pid) for pid, _ in tree(root)) / 1e6
