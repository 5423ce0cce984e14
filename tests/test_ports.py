"""The folder that `serve` has for itself, and what it needs of the machine at the start."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from container import serving
from container.programs.gunicorn import SOCKET
from container.serving import OWN, make_run_folder
from dispatcher.settings import SettingError, read_settings
from tests.conftest import PROJECT


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout


def test_nobody_else_is_given_the_folder_of_a_serve_that_runs(tmp_path: Path) -> None:
    with make_run_folder(tmp_path / "run") as ours:
        (ours / "wanted").mkdir()
        with pytest.raises(SettingError, match=r"RUN_DIR is '.*/run', which another"):
            make_run_folder(tmp_path / "run").__enter__()
        assert (ours / "wanted").is_dir()
    with make_run_folder(tmp_path / "run") as next_one:
        assert not (next_one / "wanted").exists()


@pytest.mark.parametrize("given", [True, False])
def test_the_own_folder_is_open_to_its_user_alone(tmp_path: Path, given: bool) -> None:
    """A process that reaches its socket is past NGINX and the API keys."""
    tmp_path.chmod(0o777)
    was = os.umask(0)
    try:
        with make_run_folder(tmp_path if given else None) as ours:
            assert ours.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(was)


def test_what_lies_beside_the_own_folder_stays(tmp_path: Path) -> None:
    """RUN_DIR may be a volume with models, under names that `serve` has in its own folder too."""
    kept = [tmp_path / name / "1" / "model.onnx" for name in ("repository", "backends", "metrics")]
    for path in kept:
        path.parent.mkdir(parents=True)
    for path in [*kept, tmp_path / "lock", tmp_path / "nginx.conf"]:
        path.write_text("theirs")
    before = set(tmp_path.rglob("*"))
    with make_run_folder(tmp_path) as ours:
        assert set(tmp_path.rglob("*")) - before == {ours, tmp_path / "dispatch-run.lock"}
        (ours / "repository").mkdir()
    with make_run_folder(tmp_path):
        assert list(ours.iterdir()) == []
    for path in [*kept, tmp_path / "lock", tmp_path / "nginx.conf"]:
        assert path.read_text() == "theirs"


def test_an_own_folder_that_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "1").mkdir(parents=True)
    (tmp_path / "dispatch-run").symlink_to("theirs")
    with pytest.raises(SettingError, match=r"RUN_DIR is '.*': File exists; name"):
        make_run_folder(tmp_path).__enter__()
    assert (tmp_path / "theirs" / "1").is_dir()


def test_in_the_longest_folder_there_is_just_room_for_a_socket() -> None:
    """By what the kernel says of the path of a Unix socket."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        longest = f"{short}/".ljust(80, "x")
        with pytest.raises(SettingError, match="; expected: absolute path of at most 80 letters"):
            make_run_folder(Path(f"{longest}x")).__enter__()
        with pytest.raises(OSError, match="path too long"):
            listener.bind(f"{longest}x/{OWN}/{SOCKET}")
        with make_run_folder(read_settings({"RUN_DIR": longest}).run_dir) as ours:
            listener.bind(str(ours / SOCKET))
            assert read_settings({"RUN_DIR": str(ours)}).run_dir == ours, "as a web worker does"


@pytest.mark.parametrize("name", ["with a blank", "long" * 30])
def test_a_temporary_folder_that_nginx_cannot_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    said = f"the temporary folder is '.*{name}.*'; set RUN_DIR to an"
    with pytest.raises(SettingError, match=said):
        make_run_folder(None).__enter__()
    assert not list((tmp_path / name).iterdir())


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tmp_path = tmp_path_factory.mktemp("f")  # RUN_DIR has at most 80 letters
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"RUN_DIR is '.*/file/run': Not a directory; name"):
        make_run_folder(tmp_path / "file" / "run").__enter__()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(SettingError, match="No such file or directory; set RUN_DIR"):
            make_run_folder(None).__enter__()
    monkeypatch.setenv("RUN_DIR", "/proc/nothing")
    assert serving.main([]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("serve: RUN_DIR is '/proc/nothing': ")


def test_a_disk_that_is_full_at_the_start_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kernel's answer is a fake: not everybody may make a file system of their own."""
    full = OSError(errno.ENOSPC, "No space left on device", "/wheel/stub", None, "/run/stub")
    monkeypatch.setattr(serving, "run", Mock(side_effect=full))
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "run"))
    assert serving.main([]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("serve: '/run/stub': No space left on device; RUN_DIR, or")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_end_the_start(tmp_path: Path, closed: str) -> None:
    """What our own files would be mistaken for otherwise."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nls -l /proc/$$/fd > {tmp_path}/open\n")
    script.chmod(0o755)
    command = f"PYTHON={script} {PROJECT / 'serve'} {closed}"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    opened = (tmp_path / "open").read_text()
    assert " 2 -> /dev/null" in opened
    for stream in range(3):
        assert f" {stream} -> " in opened


@pytest.mark.parametrize(("hard", "refused"), [(64, True), (512, False)])
def test_too_few_open_files_are_named_at_the_start(hard: int, refused: bool) -> None:
    code = (
        "import resource; from container.checks import raise_file_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard})); raise_file_limit(print)"
    )
    assert ("a process may have only 64 open files" in run_python(code)) == refused
