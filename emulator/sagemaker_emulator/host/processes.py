"""The processes of a container that run on this machine, as Linux shows them in /proc."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
LISTENS = "0A"
DOCKERS_OWN = "0B00007F"  # 127.0.0.11: the resolver of names in a network of Docker


def tree(pid: int) -> list[int]:
    """Return a process and all that it started, the first one first."""
    children: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def listening(pids: Iterable[int]) -> set[int]:
    """Return the TCP ports that processes listen on; raise PermissionError for another user's."""
    found = set()
    for pid in pids:
        sockets = set()
        with suppress(FileNotFoundError, ProcessLookupError):
            for one in (PROC / str(pid) / "fd").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    sockets.add(str(one.readlink()).removeprefix("socket:[").removesuffix("]"))
        for table in ("tcp", "tcp6"):
            with suppress(OSError):
                lines = (PROC / str(pid) / "net" / table).read_text(encoding="utf-8").splitlines()
                for line in lines[1:]:
                    fields = line.split()
                    host, _, port = fields[1].partition(":")
                    if fields[3] == LISTENS and fields[9] in sockets and host != DOCKERS_OWN:
                        found.add(int(port, 16))
    return found


def belongs_to(pid: int, container: str) -> bool:
    """Return whether a process of this machine is in a container, by the container's id."""
    try:
        return container in (PROC / str(pid) / "cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
