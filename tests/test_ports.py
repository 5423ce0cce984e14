"""Several runs of the tests may go on beside each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from container.__main__ import InUse, run_folder
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
