"""Take away what Python has on Linux and not on Windows, for what has this folder on its path.

It is a stand-in for a machine that the tests have not: paths, processes and sockets stay Linux's.
"""

from __future__ import annotations

import asyncio
import multiprocessing.util
import os
import signal
import socketserver
import subprocess
import sys
import tempfile
from typing import Any

# What is imported above looks at `sys.platform` itself, and stays as it is.
assert asyncio
assert multiprocessing.util
assert socketserver
assert subprocess
assert tempfile

for module in (
    *("crypt", "fcntl", "grp", "nis", "ossaudiodev", "pty", "pwd", "resource", "spwd", "syslog"),
    *("termios", "tty"),
):
    sys.modules[module] = None  # type: ignore[assignment]

for name in (
    *("chown", "confstr", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid", "getuid"),
    *("getloadavg", "getpgid", "killpg", "mkfifo", "nice", "posix_fallocate", "pread", "pwrite"),
    *("sched_getaffinity", "sched_setaffinity", "setsid", "statvfs", "sysconf"),
):
    delattr(os, name)

for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    delattr(signal, name)

access = os.access


def windows_access(path: Any, mode: int, **how: Any) -> bool:
    if how.get("effective_ids"):
        raise NotImplementedError("access: effective_ids unavailable on this platform")
    return access(path, mode, **how)


os.access = windows_access  # type: ignore[assignment]
os.supports_effective_ids = set()
