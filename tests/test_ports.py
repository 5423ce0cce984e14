"""Several runs of the tests may go on beside each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from container.__main__ import InUse, NoFolder, run_folder
from tests.conftest import PROJECT, free_ports


def test_nobody_else_is_given_ports_that_a_run_of_the_tests_has() -> None:
    ours = {*free_ports(4), *free_ports(4)}
    assert len(ours) == 8
    other = "from tests.conftest import free_ports; print(*free_ports(4))"
    came = subprocess.run(
        [sys.executable, "-c", other], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    theirs = {int(port) for port in came.stdout.split()}
    assert len(theirs) == 4
    assert not ours & theirs


def test_nobody_else_is_given_the_folder_of_a_serve_that_runs(tmp_path: Path) -> None:
    with run_folder(tmp_path / "run") as ours:
        (ours / "wanted").mkdir()
        with pytest.raises(InUse, match=r"RUN_DIR is '.*/run', which another"):
            run_folder(tmp_path / "run").__enter__()
        assert (ours / "wanted").is_dir()
    with run_folder(tmp_path / "run") as next_one:
        assert not (next_one / "wanted").exists()


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoFolder, match=r"RUN_DIR is '.*/file/run': Not a directory; name"):
        run_folder(tmp_path / "file" / "run").__enter__()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NoFolder, match="No such file or directory; set RUN_DIR"):
        run_folder(None).__enter__()
    serve = subprocess.run(
        [sys.executable, "-m", "container"],
        cwd=PROJECT,
        env={**os.environ, "RUN_DIR": "/proc/nothing"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert serve.returncode == 2
    assert serve.stderr.startswith("serve: RUN_DIR is '/proc/nothing': ")
    assert len(serve.stderr.splitlines()) == 1
