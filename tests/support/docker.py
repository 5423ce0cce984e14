"""A real Docker engine; tests are skipped, saying so, where none answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def docker(*arguments: str | Path, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *arguments], check=False, capture_output=True, text=True, timeout=1200
    )
    if check and done.returncode:
        pytest.fail(f"docker {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def skip_without_engine() -> None:
    try:
        done = subprocess.run(["docker", "version"], check=False, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no docker here")
    if done.returncode:
        pytest.skip("no Docker engine answers")
