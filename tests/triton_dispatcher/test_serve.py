"""`dispatcher serve FOLDER`: what it starts, and what it says where it cannot."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tool.__main__ import main
from tool.commands import serve


class Started(Exception):
    """What would take the place of this process."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    def execve(*given: Any) -> None:
        raise Started(*given)

    monkeypatch.setattr(os, "execve", execve)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("folders", "models", "classes"),
    [
        (["double"], "", []),
        (["double", "code/clients"], "", ["code/clients"]),
        (["models", "clients"], "models", ["clients"]),
        (["models"], "models", []),
    ],
)
def test_a_folder_becomes_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folders: list[str],
    models: str,
    classes: list[str],
) -> None:
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("CLIENTS_PATH", "/mine")
    monkeypatch.setenv("MODEL_DIR", "/other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Started) as called:
        main(["serve", ".", "--port", "9000"])
    program, arguments, environment = called.value.args
    assert (program, arguments) == ("/bin/sh", ["/bin/sh", str(PROJECT / "serve")])
    assert environment["PYTHON"] == sys.executable
    assert environment["MODEL_REPOSITORY"] == str(tmp_path / models)
    assert environment["MODEL_DIR_USE"] == "ignore"
    expected = [*(str(tmp_path / name) for name in classes), "/mine"]
    assert environment["CLIENTS_PATH"].split(":") == expected
    assert environment["SAGEMAKER_BIND_TO_PORT"] == "9000"


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([str(one) for one in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_one_sentence_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    (tmp_path / "clients").mkdir()
    err = said(capsys, "serve", tmp_path, "--port", "9000")
    assert err.startswith("dispatcher serve: serving needs Linux")
    inside = "-e MODEL_REPOSITORY=/served -e MODEL_DIR_USE=ignore -e CLIENTS_PATH=/served/clients"
    assert f'`docker run --rm -p 9000:8080 -v "{tmp_path}:/served" {inside} triton-d' in err
    assert err.count("\n") == 1


def test_what_is_missing_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err = said(capsys, "serve", tmp_path / "none")
    assert f"{tmp_path / 'none'} is no folder that can be read" in err

    def find(name: str) -> Any:
        return None if name == "gunicorn" else importlib.util.find_spec(name)

    monkeypatch.setattr(serve, "find_spec", find)
    assert "serving needs gunicorn" in (err := said(capsys, "serve", tmp_path))
    assert "pip install 'triton-dispatcher[serve]'" in err


OF_WINDOWS = OSError("a required privilege is not held by the client")
OF_WINDOWS.winerror = 1314  # type: ignore[attr-defined]  ERROR_PRIVILEGE_NOT_HELD


def lacks(module: str) -> Exception:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (lacks("cv2"), "this Python lacks cv2, which this command needs; `pip install"),
        (lacks("tritonclient.grpc"), "this Python lacks tritonclient, which this command needs"),
        (lacks("fcntl"), "this command needs Linux or macOS"),
        # Models are linked into one repository to be looked at.
        (OF_WINDOWS, "turn on Developer Mode in the settings of Windows"),
        (lacks("tool.nothing"), ""),  # a fault of this project's own
    ],
)
def test_a_command_without_its_packages_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, fix: str
) -> None:
    def run(_: object) -> None:
        raise error

    monkeypatch.setattr("tool.commands.models.run", run)
    if fix:
        assert fix in said(capsys, "models")
    else:
        with pytest.raises(ModuleNotFoundError, match="nothing"):
            main(["models"])
