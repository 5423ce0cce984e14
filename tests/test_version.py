"""The version is written in one place, and shown wherever a reader looks for it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from dispatcher.version import VERSION
from tests.conftest import PROJECT

PROGRAMS = (PROJECT / "serve", PROJECT / "tool" / "dispatcher")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
@pytest.mark.parametrize("revision", ["", "4b3a0a4"])
def test_each_program_says_which_version_it_is(program: object, revision: str) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": sys.executable,
        "TRITON_DISPATCHER_REVISION": revision,
    }
    done = subprocess.run(
        [str(program), "--version"], env=environment, capture_output=True, text=True, check=True
    )
    expected = f"triton-dispatcher {VERSION} (revision {revision or 'unknown'})\n"
    assert (done.stdout, done.stderr) == (expected, "")


def test_no_other_file_spells_the_version() -> None:
    """A release changes one line; the package and the image's label are made from it."""
    table = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert table["tool"]["hatch"]["version"] == {"path": "dispatcher/version.py"}
    assert re.search(r"^ARG VERSION=unknown$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    for name in ("pyproject.toml", "Dockerfile", "Makefile", "compose.yaml"):
        assert f'"{VERSION}"' not in (PROJECT / name).read_text(), name


@pytest.mark.parametrize("label", ["version", "revision", "source", "created"])
def test_the_image_has_a_label_that_make_image_fills_in(label: str) -> None:
    argument = label.upper()
    dockerfile = (PROJECT / "Dockerfile").read_text()
    assert dockerfile.count(f'org.opencontainers.image.{label}="${argument}"') == 2, "of Lambda too"
    assert re.search(rf"^ARG {argument}=unknown$", dockerfile, re.MULTILINE)
    assert f"--build-arg {argument}=" in (PROJECT / "Makefile").read_text()
