"""Programs for tests: shell scripts in the place of others, Pythons, and what a process needs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest


def write_program(path: Path, script: str = "") -> Path:
    """Write a shell script that can be run, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def find_python(version: str) -> str:
    """Find a Python of a version, as `3.12`; skip the test where there is none."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    found = str(pyenv[0]) if pyenv else shutil.which(f"python{version}")
    if found is None:
        pytest.skip(f"there is no Python {version} on this machine")
    return found


def kilobytes(pid: int, file: str, label: str) -> int:
    """Return a size of a process from a file of /proc/PID."""
    found = re.search(rf"^{label}:\s+(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    assert found
    return int(found[1])
