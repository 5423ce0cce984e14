"""The tool, and the tests of authors, need nothing that Windows lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT, free_ports
from tests.emulator.conftest import PROGRAM as CONTAINER
from tests.support.emulate import emulated
from tests.triton_dispatcher.conftest import HERE
from tool.__main__ import COMMANDS

WITHOUT_UNIX = str(PROJECT / "tests" / "support" / "without_unix")
ENVIRONMENT = {"PYTHONPATH": f"{WITHOUT_UNIX}{os.pathsep}{PROJECT}"}


def test_every_command_can_be_loaded(tmp_path: Path) -> None:
    """Where the stand-in has taken away what Windows lacks."""
    code = f"""
import importlib, os
for name in {[module for module, _ in COMMANDS.values() if module]!r}:
    importlib.import_module(f"tool.{{name}}")
import weights.cli, clients.base, clients.testing, clients.families.detection
assert not hasattr(os, "killpg")
import fcntl
"""
    done = HERE.run("python", "-c", code, cwd=tmp_path, **ENVIRONMENT)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: import of fcntl halted"), done.stderr


def test_an_author_s_day(tmp_path: Path) -> None:
    """A class is written, tested, checked, shown and packed."""
    code = """
import runpy, sys, unittest
from tool.__main__ import main
for line in (
    ["new-client", "double"], ["check", "."], ["models"], ["pack", "."],
):
    assert main(line) == 0, line
sys.argv = ["test"]
runpy.run_path("code/tests/test_double.py", run_name="__main__")
"""
    done = HERE.run("python", "-c", code, cwd=tmp_path, **ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "1 models (double): 0 errors" in done.stdout


def test_a_running_container_is_emulated_by_its_url(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    variables = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BIND_TO_PORT": str(port)}
    with subprocess.Popen([sys.executable, CONTAINER], env=variables) as container:
        try:
            url = f"http://127.0.0.1:{port}"
            with emulated(tmp_path, url, environment=ENVIRONMENT) as endpoint:
                body, _ = endpoint.invoke(b"picture", CustomAttributes="upper")
        finally:
            container.kill()
    assert body == b"PICTURE"
