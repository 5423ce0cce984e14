"""`dispatcher check` on what its user may not read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.check import Check, write_class
from tests.support.mistakes import write_right
from tool.__main__ import main

NOBODY = 65534
IS_ROOT = os.geteuid() == 0


@pytest.mark.parametrize(
    "closed",
    [
        *("", "right", "right/1", "right/1/model.onnx", "right/config.pbtxt", "right/inner"),
        *("code", "code/clients", "code/clients/mine.py", "spare", "spare/bin"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_fix(
    check: Check, capsys: pytest.CaptureFixture[str], closed: str
) -> None:
    """In a folder that all users may enter; root becomes another user, which may not read all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (write_right(folder, "right") / "inner").mkdir()
        write_class(folder, "from clients.base import Client\n")
        (folder / "spare" / "bin").mkdir(parents=True)
        check(folder, "--no-clients")
        (folder / closed).chmod(0)
        if IS_ROOT:
            os.seteuid(NOBODY)
        try:
            assert main(["check", name, "--no-clients"]) == 2
        finally:
            if IS_ROOT:
                os.seteuid(0)
            (folder / closed).chmod(0o755)
        said = f"{str(folder / closed)!r} cannot be read; let all users read it: `chmod -R a+rX`"
        assert said in capsys.readouterr().err
