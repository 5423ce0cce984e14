"""Which Triton is used: NVIDIA's image first, then PATH, then the one in the wheel."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from container.programs import find_triton as triton
from container.programs.find_triton import find_triton
from container.trouble import Trouble
from tests.conftest import PROJECT
from tests.support.programs import write_program


def test_nvidia_s_image_comes_first_with_its_own_backends_then_path(tmp_path: Path) -> None:
    """A folder laid out as /opt/tritonserver is in that image."""
    home = tmp_path / "opt" / "tritonserver"
    server = write_program(home / "bin" / "tritonserver")
    (home / "backends" / "onnxruntime").mkdir(parents=True)
    other = write_program(tmp_path / "bin" / "tritonserver")
    found = find_triton(home, str(other.parent), tmp_path)
    assert found.executable == server
    assert found.options == (f"--backend-directory={home / 'backends'}",)
    assert found.environment == {}, "its Python is left alone"
    found = find_triton(tmp_path / "none", str(other.parent), tmp_path)
    assert found.executable == other, "the one on PATH comes next"


def test_the_wheel_comes_last_with_this_project_s_backends(tmp_path: Path) -> None:
    found = find_triton(tmp_path / "none", "", tmp_path)
    assert found.kind == "embedded"
    assert found.executable.name == "tritonserver"
    backends = tmp_path / "backends"
    assert f"--backend-directory={backends}" in found.options
    assert (backends / "onnxruntime" / "model.py").is_file()
    assert (backends / "python" / "triton_python_backend_stub").stat().st_mode & stat.S_IXUSR
    assert found.environment["PATH"].split(":")[0] == str(Path(sys.prefix) / "bin")
    # Triton 2.51 (`stub_launcher.cc`) runs it without arguments: another status is made 0100.
    stub = Path(triton.__file__).with_name(triton.STUB)
    assert subprocess.run([stub], check=False, capture_output=True).returncode == 1


def test_backends_laid_out_beforehand_are_used_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image's /tmp may be one that nothing can be run from."""
    prepared = tmp_path / "environment" / "triton-backends"
    prepared.parent.mkdir()
    monkeypatch.setattr(triton, "PREPARED", prepared)
    triton.prepare()
    found = find_triton(tmp_path / "none", "", tmp_path)
    assert f"--backend-directory={prepared}" in found.options
    assert not (tmp_path / "backends").exists()
    (prepared / "python" / "triton_python_backend_stub").write_text("of another version")
    found = find_triton(tmp_path / "none", "", tmp_path)
    assert f"--backend-directory={tmp_path / 'backends'}" in found.options


def test_what_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(Trouble, match="nvidia-pytriton"):
            find_triton(tmp_path / "none", "", tmp_path)
    monkeypatch.setattr(triton.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(triton.ctypes, "CDLL", missing)
    with pytest.raises(Trouble, match="apt-get install libpython3"):
        find_triton(tmp_path / "none", "", tmp_path)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first installation makes an environment, which the next ones find."""
    return tmp_path_factory.mktemp("installed") / "venv"


@pytest.mark.parametrize(
    ("known", "fails", "made"),
    [
        ("C\nC.utf8\nPOSIX", "", ["--no-archive -i en_US -f UTF-8 en_US.UTF-8"]),
        ("C\nen_US.utf8\nPOSIX", "", []),
        ("C\nC.utf8\nPOSIX", "exit 4", ["--no-archive -i en_US -f UTF-8 en_US.UTF-8"]),
    ],
)
@pytest.mark.slow
def test_what_is_installed_makes_the_locale_of_text_models_where_it_is_missing(
    tmp_path: Path, venv: Path, known: str, fails: str, made: list[str]
) -> None:
    """And goes on without it where that cannot be done."""
    if not Path("/usr/share/i18n/locales/en_US").is_file():
        pytest.skip("the package `locales` is not installed; this test installs none")
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    for name, does in {
        "locale": f"echo '{known}'",
        "localedef": f'echo "$@" >>{calls}; {fails}',
        "apt-get": "",
        "sudo": 'exec "$@"',
        "nginx": "",
    }.items():
        write_program(programs / name, does)
    done = subprocess.run(
        [PROJECT / "container" / "image" / "install", venv],
        env={"PATH": f"{programs}:{os.defpath}", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (calls.read_text().splitlines() if calls.exists() else []) == made
    assert ("there is no locale en_US.UTF-8" in done.stderr) == bool(fails)
