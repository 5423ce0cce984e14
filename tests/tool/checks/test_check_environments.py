"""`dispatcher check` on the environments of Python models."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.check import Check

HERE = "$$TRITON_MODEL_DIRECTORY"


def write_spell(root: Path, value: str) -> Path:
    """Write a Python model that names an environment, and one, elsewhere; return the latter.

    What is in it, the server says at its load.
    """
    folder = root / "spell"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{value}" }} }}\n'
    )
    made = root.parent / "made" / "env"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "activate").touch()
    return made


def pack(environment: Path, archive: Path) -> None:
    shutil.make_archive(str(archive), "gztar", environment)
    archive.with_name(f"{archive.name}.tar.gz").rename(archive)


@pytest.mark.parametrize("kind", ["packed", "plain"])
@pytest.mark.parametrize("up", ["", "../"])
def test_an_environment_that_works_is_no_finding(
    tmp_path: Path, check: Check, kind: str, up: str
) -> None:
    """In the model's folder, beside it, or, by an absolute path, somewhere in the image."""
    root = tmp_path / "models"
    made = write_spell(root, f"{HERE}/{up}env")
    write = shutil.copytree if kind == "plain" else pack
    write(made, root / "spell" / f"{up}env")
    assert check(root, "--no-clients") == (0, [])
    write(made, tmp_path / "env")
    config = root / "spell" / "config.pbtxt"
    config.write_text(config.read_text().replace(f"{HERE}/{up}env", str(tmp_path / "env")))
    assert check(root, "--no-clients") == (0, [])


def link_outside(env: Path) -> None:
    (env.parent.parent / "outside").mkdir()
    env.symlink_to(env.parent.parent / "outside")


def no_activate_packed(env: Path) -> None:
    (env.parent.parent / "bare" / "bin").mkdir(parents=True)
    pack(env.parent.parent / "bare", env)


@pytest.mark.parametrize(
    ("value", "write", "message", "fix"),
    [
        (f"{HERE}/../env", None, 'is "$$TRITON_MODEL_DIRECTORY/../env", which is not there', "put"),
        (f"{HERE}/env", None, "which is not there", "venv-pack or conda-pack"),
        (
            f"{HERE}/../env",
            lambda env: (env / "bin").mkdir(parents=True),
            "which has no bin/activate; Triton refuses",
            "venv-pack",
        ),
        (f"{HERE}/../env", no_activate_packed, "which has no bin/activate", "venv-pack"),
        (f"{HERE}/../env", Path.touch, "cannot be read as a tar archive", "venv-pack"),
        (
            f"{HERE}/../env",
            lambda env: env.write_text("this is no archive"),
            "cannot be read as a tar archive",
            "venv-pack",
        ),
        (f"{HERE}/../env", lambda env: env.symlink_to("nothing"), "which is not there", "itself"),
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
    write: Callable[[Path], object] | None,
    message: str,
    fix: str,
) -> None:
    root = tmp_path / "models"
    write_spell(root, value)
    if write:
        write(root / "env")
    code, found = check(root, "--no-clients")
    assert code == 1
    (error,) = [one for one in found if one["level"] == "error"]
    assert message in error["message"]
    assert fix in error["fix"]


def test_a_link_in_the_model_s_folder_that_leads_out_is_one_finding(
    tmp_path: Path, check: Check
) -> None:
    made = write_spell(tmp_path / "models", f"{HERE}/env")
    (tmp_path / "models" / "spell" / "env").symlink_to(made)
    code, (error,) = check(tmp_path / "models", "--no-clients")
    assert (code, error["file"]) == (1, "spell/env")
    assert "leads out of the folder" in error["message"]
