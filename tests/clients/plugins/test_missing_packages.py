"""What the error of a class says of a package that is not there, and that this mends it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from clients.base import Environment
from clients.plugins.registry import load_clients
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import HEAD, answering


def importing(line: str, result: str = "1") -> str:
    """Return the file of a class that begins with an import."""
    return f"{HEAD}{line}\n{textwrap.dedent(answering(result))}"


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
    install = f"`{sys.executable} -m pip install PACKAGE`; for containers build an image"
    fix = f"put {name}.py beside the class; else on your own machine {install}"
    assert (fix in reason) is has_fix


def test_pure_python_beside_a_class_is_imported(tmp_path: Path) -> None:
    """As the fix says: pip puts a package into the folder of the class, which imports it."""
    package, wheel = tmp_path / "clients" / "mine", tmp_path / "shouting-1.0-py3-none-any.whl"
    package.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("shouting/__init__.py", "from shouting.loudly import loud\n")
        packed.writestr("shouting/loudly.py", "def loud(text):\n    return text.upper()\n")
        info = "shouting-1.0.dist-info"
        packed.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/RECORD", "")
    (package / "__init__.py").write_text(importing("from shouting import loud", "loud('well')"))
    folders = [package.parent]
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    (reason,) = load_clients(environment, folders).broken.values()
    assert "put shouting.py beside" in reason
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", package, wheel], check=True)
    assert load_clients(environment, folders).clients["mine"].inference({}) == "WELL"
