"""`dispatcher check` on the environments of Python models."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.check import Check

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
HERE = "$$TRITON_MODEL_DIRECTORY"


def add_model(root: Path, value: str) -> Path:
    folder = root / "spell"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (folder / "config.pbtxt").write_text(CONFIG % value)
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """What `check` sees of an environment: what is in it, the server says at its load."""
    folder = tmp_path / "made" / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").touch()
    return folder


def pack(environment: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, ".")


@pytest.mark.parametrize("kind", ["packed", "plain"])
@pytest.mark.parametrize("up", ["", "../"])
def test_an_environment_that_works_is_no_finding(
    tmp_path: Path, made: Path, check: Check, kind: str, up: str
) -> None:
    folder = add_model(tmp_path / "models", f"{HERE}/{up}env")
    if kind == "plain":
        shutil.copytree(made, folder / f"{up}env")
    else:
        pack(made, folder / f"{up}env")
    assert check(tmp_path / "models", "--no-clients") == (0, [])


def empty_file(root: Path) -> None:
    (root / "env").touch()


def text(root: Path) -> None:
    (root / "env").write_text("this is no archive")


def link_to_nothing(root: Path) -> None:
    (root / "env").symlink_to("nothing")


def link_outside(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "env").symlink_to(root.parent / "outside")


def no_activate(root: Path) -> None:
    (root / "env" / "bin").mkdir(parents=True)


def no_activate_packed(root: Path) -> None:
    no_activate(root.parent)
    pack(root.parent / "env", root / "env")


@pytest.mark.parametrize(
    ("value", "write", "message", "fix"),
    [
        (f"{HERE}/../env", None, 'is "$$TRITON_MODEL_DIRECTORY/../env", which is not there', "put"),
        (f"{HERE}/env", None, "which is not there", "venv-pack or conda-pack"),
        (f"{HERE}/../env", no_activate, "which has no bin/activate; Triton refuses", "venv-pack"),
        (f"{HERE}/../env", no_activate_packed, "which has no bin/activate", "venv-pack"),
        (f"{HERE}/../env", empty_file, "cannot be read as a tar archive", "venv-pack"),
        (f"{HERE}/../env", text, "cannot be read as a tar archive", "venv-pack"),
        (f"{HERE}/../env", link_to_nothing, "which is not there", "itself"),
        (f"{HERE}/../env", link_outside, "which leads out of the folder, to", "itself"),
        (f"{HERE}/../../outside", None, "which is not there", "put"),
        ("env.tar.gz", None, "is no path", f'write "{HERE}/env.tar.gz"'),
        ("$TRITON_MODEL_DIRECTORY/env.tar.gz", None, "is no path", f'write "{HERE}/env.tar.gz"'),
    ],
)
def test_a_path_that_leads_to_no_environment(
    tmp_path: Path,
    check: Check,
    value: str,
    write: Callable[[Path], None] | None,
    message: str,
    fix: str,
) -> None:
    root = tmp_path / "models"
    add_model(root, value)
    if write:
        write(root)
    code, found = check(root, "--no-clients")
    assert code == 1
    (error,) = [one for one in found if one["level"] == "error"]
    assert message in error["message"]
    assert fix in error["fix"]


def test_a_link_in_the_model_s_folder_that_leads_out_is_one_finding(
    tmp_path: Path, made: Path, check: Check
) -> None:
    folder = add_model(tmp_path / "models", f"{HERE}/env")
    (folder / "env").symlink_to(made)
    code, found = check(tmp_path / "models", "--no-clients")
    assert code == 1
    (error,) = found
    assert error["file"] == "spell/env"
    assert "leads out of the folder" in error["message"]


def test_an_absolute_path_may_lead_out(tmp_path: Path, made: Path, check: Check) -> None:
    """An image has it somewhere."""
    archive = tmp_path / "env.tar.gz"
    pack(made, archive)
    add_model(tmp_path / "models", os.fspath(archive))
    assert check(tmp_path / "models", "--no-clients") == (0, [])
