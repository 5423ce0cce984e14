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
            check=False,
        )

    def pip(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run uv's pip, which takes a tenth of the time, for this environment."""
        uv = Path(sys.executable).with_name("uv")
        return subprocess.run(
            [uv, "pip", command, "--quiet", "--python", self.python, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    def script(self, text: str, folder: Path, **variables: str) -> str:
        """Run a script from a folder, which must succeed; return what it prints."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.py").write_text(text)
        done = self.run("python", folder / "script.py", cwd=folder, **variables)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


HERE = Installed(Path(sys.executable).parents[1])


def make_environment(folder: Path, python: str = sys.executable) -> Installed:
    """Make an environment in which nothing is installed."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    return Installed(folder)


def build(folder: Path, target: str = "wheel") -> Path:
    """Build the wheel, or one of another kind."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel alone; what it needs is found in the packages of these tests."""
    made = make_environment(tmp_path_factory.mktemp("environment") / "venv")
    done = made.pip("install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    # A path in a `.pth` file is searched last, and `.pth` files in it are not read.
    (made.packages / "zz-of-the-tests.pth").write_text(sysconfig.get_path("purelib"))
    return made
