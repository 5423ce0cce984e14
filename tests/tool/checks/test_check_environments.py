"""`dispatcher check` on the environments of Python models."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
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
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"


def add_model(root: Path, value: str) -> Path:
    folder = root / "spell"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (folder / "config.pbtxt").write_text(CONFIG % value)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has what Triton needs, by its names."""
    folder = tmp_path_factory.mktemp("made") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{OWN}" / "site-packages"
    (packages / "numpy").mkdir()
    (packages / "numpy" / "__init__.py").touch()
    (packages / "numpy-1.26.4.dist-info").mkdir()
    return folder


def pack(environment: Path, archive: Path, top: str = ".") -> None:
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, top)


@pytest.mark.parametrize("place", ["inside", "beside"])
@pytest.mark.parametrize("kind", ["venv-pack", "tar", "plain"])
def test_an_environment_that_works_is_no_finding(
    tmp_path: Path, made: Path, check: Check, kind: str, place: str
) -> None:
    name = "env" if kind == "plain" else "env.tar.gz"
    folder = add_model(tmp_path, f"{HERE}/{'../' if place == 'beside' else ''}{name}")
    target = (tmp_path if place == "beside" else folder) / name
    if kind == "plain":
        shutil.copytree(made, target, symlinks=True)
    elif kind == "tar":
        pack(made, target)
    else:
        command = [sys.executable, "-m", "venv_pack", "-q", "-p", made, "-o", target]
        subprocess.run(command, check=True)
    assert check(tmp_path, "--no-clients") == (0, [])


def python_37(folder: Path) -> None:
    (folder / "lib" / f"python{OWN}").rename(folder / "lib" / "python3.7")
    _replace_python(folder, None)


def packages_of_another(folder: Path) -> None:
    (folder / "lib" / f"python{OWN}").rename(folder / "lib" / "python3.10")


def library_missing(folder: Path) -> None:
    (folder / "lib" / f"python{OWN}").rename(folder / "lib" / "python3.9")
    _replace_python(folder, None)


def python_elsewhere(folder: Path) -> None:
    _replace_python(folder, "/nowhere/bin/python3")


def python_missing(folder: Path) -> None:
    (folder / "bin" / "python3").unlink()


def numpy_2(folder: Path) -> None:
    packages = folder / "lib" / f"python{OWN}" / "site-packages"
    (packages / "numpy-1.26.4.dist-info").rename(packages / "numpy-2.1.3.dist-info")


def link_out(folder: Path) -> None:
    (folder / "lib" / "libx.so").symlink_to("/usr/lib/libx.so")


def no_activate(folder: Path) -> None:
    (folder / "bin" / "activate").unlink()


def _replace_python(folder: Path, target: str | None) -> None:
    """Make the interpreter a link, or a file of its own as conda has it."""
    program = folder / "bin" / f"python{OWN}"
    program.unlink()
    if target:
        program.symlink_to(target)
    else:
        program.touch()


@pytest.mark.parametrize("kind", ["packed", "plain"])
@pytest.mark.parametrize(
    ("damage", "message", "fix"),
    [
        (python_37, "has Python 3.7, for which Triton has no stub", "one of 3.8, 3.9"),
        (packages_of_another, "has packages of Python 3.10, but its bin/python3 is", "again"),
        (library_missing, "has Python 3.9, but no libpython3.9.so.1.0", "conda-pack"),
        (python_elsewhere, "link to /nowhere/bin/python3, which is not here", "--python-prefix"),
        (python_missing, "has no bin/python3", "venv-pack"),
        (numpy_2, "has numpy 2.1.3, with which this Triton sends empty tensors", "'numpy<2'"),
        (link_out, "leads out of the environment: lib/libx.so to /usr/lib/libx.so", "itself"),
        (no_activate, "which has no bin/activate; Triton refuses that", "venv-pack"),
    ],
)
def test_a_damaged_environment_is_a_sentence_with_the_fix(
    tmp_path: Path,
    made: Path,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    message: str,
    fix: str,
    kind: str,
) -> None:
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    root = tmp_path / "models"
    name = "env" if kind == "plain" else "env.tar.gz"
    add_model(root, f"{HERE}/../{name}")
    environment = (root if kind == "plain" else tmp_path) / "env"
    shutil.copytree(made, environment, symlinks=True)
    damage(environment)
    if kind == "packed":
        pack(environment, root / name)
    code, found = check(root, "--no-clients")
    assert code == 1
    errors = [one for one in found if one["level"] == "error"]
    seen = [one for one in errors if message in one["message"] and fix in one["fix"]]
    assert len(seen) == 1, found
    assert "3.13" not in seen[0]["fix"], "there is no numpy below 2 for it"
    assert seen[0]["file"] == "spell/config.pbtxt"
    assert seen[0]["key"] == "EXECUTION_ENV_PATH"
    assert seen[0]["line"] == 5


def empty_file(root: Path) -> None:
    (root / "env").touch()


def empty_folder(root: Path) -> None:
    (root / "env").mkdir()


def text(root: Path) -> None:
    (root / "env").write_text("this is no archive")


def link_to_nothing(root: Path) -> None:
    (root / "env").symlink_to("nothing")


def link_outside(root: Path) -> None:
    (root.parent / "outside").mkdir()
    (root / "env").symlink_to(root.parent / "outside")


def one_too_deep(root: Path) -> None:
    (root / "deep" / "env" / "bin").mkdir(parents=True)
    (root / "deep" / "env" / "bin" / "activate").touch()
    pack(root / "deep", root / "env")
    shutil.rmtree(root / "deep")


@pytest.mark.parametrize(
    ("value", "write", "message", "fix"),
    [
        (f"{HERE}/../env", None, 'is "$$TRITON_MODEL_DIRECTORY/../env", which is not there', "put"),
        (f"{HERE}/env", None, "which is not there", "venv-pack or conda-pack"),
        (f"{HERE}/../env", empty_file, "which is empty", "venv-pack"),
        (f"{HERE}/../env", empty_folder, "which is empty", "venv-pack"),
        (f"{HERE}/../env", text, "cannot be read as a tar archive", "venv-pack"),
        (f"{HERE}/../env", link_to_nothing, "a link to nothing, which is not there", "itself"),
        (f"{HERE}/../env", link_outside, "which leads out of the folder, to", "itself"),
        (f"{HERE}/../env", one_too_deep, "no bin/activate; it is in env/", "venv-pack"),
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


def test_a_stub_for_another_python_is_named(tmp_path: Path, made: Path, check: Check) -> None:
    folder = add_model(tmp_path, f"{HERE}/env.tar.gz")
    pack(made, folder / "env.tar.gz")
    (folder / "triton_python_backend_stub").write_bytes(b"\x7fELF libpython3.6.so.1.0\0")
    code, found = check(tmp_path, "--no-clients")
    assert code == 1
    (error,) = found
    assert f"has Python {OWN}, but the triton_python_backend_stub" in error["message"]
    assert "is for Python 3.6" in error["message"]


def test_an_absolute_path_may_lead_out(tmp_path: Path, made: Path, check: Check) -> None:
    """An image has it somewhere."""
    archive = tmp_path / "env.tar.gz"
    pack(made, archive)
    add_model(tmp_path / "models", os.fspath(archive))
    assert check(tmp_path / "models", "--no-clients") == (0, [])
