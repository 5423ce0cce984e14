"""`dispatcher check` on what its user may not read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.check import Check, write_class
from tests.support.mistakes.mistake import write_right
from tool.__main__ import main

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def shared(check: Check) -> Iterator[Path]:
    """A repository below folders that all users may enter; the check has been imported."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    right = write_right(folder, "right")
    (right / "inner").mkdir()
    write_class(folder, "from clients.base import Client\n")
    (folder / "spare" / "bin").mkdir(parents=True)
    check(folder, "--no-clients")
    yield folder
    if IS_ROOT:
        os.seteuid(0)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def close(path: Path) -> None:
    """Let nobody read a path; root becomes another user, which may not pass that over."""
    path.chmod(0)
    if IS_ROOT:
        os.seteuid(NOBODY)


@pytest.mark.parametrize(
    "closed",
    [
        *("right", "right/1", "right/1/model.onnx", "right/config.pbtxt", "right/inner"),
        *("code", "code/clients", "code/clients/mine.py", "spare", "spare/bin"),
    ],
)
def test_what_cannot_be_read_is_one_finding_with_its_fix(
    shared: Path, check: Check, capsys: pytest.CaptureFixture[str], closed: str
) -> None:
    close(shared / closed)
    code, found = check(shared, "--no-clients")
    errors = [(one["file"], one["message"]) for one in found if one["level"] == "error"]
    assert (code, errors) == (1, [(closed, "cannot be read (Permission denied)")])
    assert "`chmod -R a+rX`" in found[0]["fix"]
    assert "Traceback" not in capsys.readouterr().err


def test_the_folder_itself_cannot_be_read(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    close(shared)
    assert main(["check", str(shared)]) == 2
    assert f"'{shared}' cannot be read; let all users read it" in capsys.readouterr().err
