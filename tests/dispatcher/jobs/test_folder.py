"""JOBS_DIR is looked at before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from container.checks import check_files
from dispatcher.jobs.store import JobStore
from dispatcher.settings import SettingError, read_settings


def with_folder(folder: Path, **more: str) -> None:
    check_files(read_settings({"JOBS_DIR": str(folder), **more}))


@pytest.mark.parametrize("folder", ["/proc/jobs", "/sys/kernel", "/proc/self/jobs/x", "a file"])
def test_a_folder_that_cannot_be_made_or_takes_no_files(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(SettingError, match="JOBS_DIR is") as caught:
        with_folder(tmp_path / folder)
    assert f"JOBS_DIR is '{tmp_path / folder}': " in str(caught.value)
    assert "expected: a folder that can be made and written to" in str(caught.value)


@pytest.mark.parametrize("left", ["a folder of another user", "a link"])
def test_what_an_earlier_container_left_that_cannot_be_written_to(
    tmp_path: Path, left: str
) -> None:
    if left == "a link":
        (tmp_path / "jobs").symlink_to("/proc/self")  # nothing can be written there
    elif os.geteuid():
        (tmp_path / "jobs").mkdir(mode=0o500)
    else:
        pytest.skip("root may write to each folder")
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
