"""The wheel, built once, and an environment with it beside the packages of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT


@dataclass(frozen=True)
class Installed:
    """An environment of its own, started without what is set for these tests."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def run(self, program: str, *arguments: str | Path, cwd: Path, **variables: str) -> Any:
        """Run one of its programs."""
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=cwd,
            env={
                "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
                "HOME": os.environ.get("HOME", "/"),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def script(self, text: str, folder: Path, **variables: str) -> str:
        """Run a script from a folder, which must succeed; return what it prints."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.py").write_text(text)
        done = self.run("python", folder / "script.py", cwd=folder, **variables)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel alone; what it needs is found in the packages of these tests."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    made = Installed(folder)
    pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    # A path in a `.pth` file is searched last, and `.pth` files in it are not read.
    (made.packages / "zz-of-the-tests.pth").write_text(sysconfig.get_path("purelib"))
    return made
