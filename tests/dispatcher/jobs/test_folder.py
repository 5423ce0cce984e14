"""JOBS_DIR is looked at before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from container.checks import check_files
from dispatcher.jobs.store import JobStore
from dispatcher.settings import SettingError, read_settings
from tests.conftest import PROJECT


def with_folder(folder: Path, **more: str) -> None:
    check_files(read_settings({"JOBS_DIR": str(folder), **more}))


def test_serve_says_in_one_line_that_jobs_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [PROJECT / "serve"],
        env={**os.environ, "JOBS_DIR": str(tmp_path / "file"), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"serve: JOBS_DIR is '{tmp_path}/file': " in line
    assert "expected: a folder that can be made and written to" in line


@pytest.mark.parametrize("folder", ["/proc/jobs", "/sys/kernel", "/proc/self/jobs/x"])
def test_a_folder_of_a_file_system_that_takes_no_files(folder: str) -> None:
    with pytest.raises(SettingError, match=f"JOBS_DIR is '{folder}': "):
        with_folder(Path(folder))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to each folder")
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o500)
    with pytest.raises(SettingError, match=f"JOBS_DIR is '{tmp_path}': 'jobs' in it: "):
        with_folder(tmp_path)


def test_what_an_earlier_container_left_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "jobs").symlink_to("/proc/self")  # nothing can be written there
    with pytest.raises(SettingError, match=f"JOBS_DIR is '{tmp_path}': 'jobs' in it: "):
        with_folder(tmp_path)


def test_a_good_folder_is_left_as_the_jobs_need_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with_folder(folder)
    assert list(folder.iterdir()) == []
    JobStore(folder, 1, 1, 1.0)
    before = sorted(folder.rglob("*"))
    with_folder(folder)
    assert sorted(folder.rglob("*")) == before


def test_without_jobs_the_folder_is_not_looked_at() -> None:
    with_folder(Path("/proc/jobs"), JOBS_QUEUE="0")
