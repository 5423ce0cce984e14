"""Several programs as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


def run_together(commands: Sequence[Sequence[str]]) -> None:
    """Run programs, and end with any of them, or by SIGTERM."""
    programs = [subprocess.Popen(command) for command in commands]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        os.wait()
    finally:
        for one in programs:
            one.terminate()
