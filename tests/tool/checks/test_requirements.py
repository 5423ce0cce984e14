"""What a `requirements.txt` beside classes wants, and what is installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest

from clients.base import Environment
from clients.plugins.registry import load_clients
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import HEAD, answering
from tool.checks.requirements import lacks_of, requirement_files

NOWHERE = "nowhere-to-be-found"


def importing(line: str, result: str = "1") -> str:
    """Return the file of a class that begins with an import."""
    return f"{HEAD}{line}\n{textwrap.dedent(answering(result))}"


def lacks(folder: Path, text: str | bytes) -> list[tuple[int, str]]:
    file = folder / "requirements.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(lacks_of(file))


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "NumPy >= 1.20, < 2  # as Triton wants it",
        "Prometheus_Client",
        'nowhere-to-be-found; python_version < "3"',
        "nowhere-to-be-found ; sys_platform == 'win32'",
        "tritonclient[grpc]",
        "-c constraints.txt",
        "--index-url=https://packages.example/simple",
        "-e .",
        "./wheels/nowhere-1.0-py3-none-any.whl",
        "https://packages.example/nowhere-1.0.tar.gz",
        "git+https://packages.example/nowhere.git#egg=nowhere",
        "flask --hash=sha256:00",
        "flask \\\n    --hash=sha256:00 \\\n    --hash=sha256:11",
        "-r requirements.txt",
    ],
)
def test_what_is_there_or_names_no_distribution_is_not_mentioned(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    assert lacks(folder, f"# the packages\n\n{line}\n") == []


def test_what_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    text = (
        f"{NOWHERE}>=1.5,<2 \\\n  --hash=sha256:00\n"
        "numpy>=2\n-r more.txt\ntwo words\nhypothesis[nowhere]\n"
        f'{NOWHERE}[fast] @ https://packages.example/x.whl ; python_version > "3"\n'
    )
    assert lacks(tmp_path, text.replace("\n", "\r\n")) == [
        (1, f"{NOWHERE}<2,>=1.5 is not installed"),
        (3, f"numpy>=2 is wanted, and numpy {np.__version__} is installed"),
        (5, "`two words` is no requirement such as num2words>=0.5"),
        (7, f"{NOWHERE} is not installed"),
    ]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    assert lacks(tmp_path, b"\xff\xfe\x00") == [(0, "it cannot be read (UnicodeDecodeError)")]


def test_files_in_code_and_in_packages_are_compared(tmp_path: Path) -> None:
    clients = tmp_path / "code" / "clients"
    (clients / "mine").mkdir(parents=True)
    for folder, line in ((clients.parent, f"{NOWHERE}>=2"), (clients / "mine", "flask")):
        (folder / "requirements.txt").write_text(line)
    assert len(requirement_files([clients])) == 2


@pytest.mark.parametrize(
    ("module", "has_fix"),
    [("nowhere_to_be_found.inner", True), ("clients.nothing", False), ("numpy.nothing", False)],
)
def test_a_module_that_is_not_found_is_named_with_the_fix(
    tmp_path: Path, module: str, has_fix: bool
) -> None:
    (tmp_path / "mine.py").write_text(importing(f"import {module}"))
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    (reason,) = registry.broken.values()
    name = module.partition(".")[0]
    assert f"ModuleNotFoundError: No module named '{name}" in reason
    assert (f"write `from .{name} import …`; else build an image" in reason) is has_fix


def test_a_package_in_a_folder_of_the_path_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the fix says: pip puts a package into a folder of PYTHONPATH."""
    wheel, packages = tmp_path / "shouting-1.0-py3-none-any.whl", tmp_path / "packages"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("shouting/__init__.py", "from shouting.loudly import loud\n")
        packed.writestr("shouting/loudly.py", "def loud(text):\n    return text.upper()\n")
        info = "shouting-1.0.dist-info"
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/RECORD", "")
    folders = [tmp_path / "clients"]
    folders[0].mkdir()
    (folders[0] / "requirements.txt").write_text("shouting>=1")
    (folders[0] / "mine.py").write_text(importing("from shouting import loud", "loud('well')"))
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    (reason,) = load_clients(environment, folders).broken.values()
    assert "`pip install --target FOLDER PACKAGE`" in reason
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", packages, wheel], check=True, timeout=120)
    monkeypatch.syspath_prepend(str(packages))
    assert list(lacks_of(folders[0] / "requirements.txt")) == []
    assert load_clients(environment, folders).clients["mine"].inference({}) == "WELL"
