"""What editors see of the wheel and of a checkout: pyright and mypy on classes of authors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.packages import modules_with
from tests.triton_dispatcher.conftest import HERE, Installed

pytestmark = pytest.mark.slow

DECLARED = """
from dataclasses import dataclass

from triton_dispatcher.clients.base import Client, Parameter


@dataclass
class Question:
    numbers: list[float]
    img: str = ""


@dataclass
class Answer:
    loudest: float
    in_time: bool


class Loudest(Client):
    modelname = "loudest"
    example = {"numbers": [1, 2]}
    parameters = {"limit": Parameter(1.0, 0, 100, "the largest number that is taken")}

    def inference(self, payload: Question) -> Answer:
        numbers = self.numbers(payload, "numbers")
        height, width, _ = self.picture(payload).shape
        doubled = self.infer({"INPUT": numbers[None]})["OUTPUT"]
        return Answer(float(doubled.max()), self.request.time_left() > height * width)
"""
WRONG = {
    "self.request.time_left()": "self.request.time_lft()",
    "self.infer({": "self.infr({",
    "self.picture(payload)": "self.picture()",
    "Answer(float(doubled.max())": "Answer(payload.nothing",
}


@pytest.fixture(scope="module")
def classes(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `new-client` writes, an example of the project, and a class that declares types."""
    folder = tmp_path_factory.mktemp("typed")
    done = installed.run("dispatcher", "new-client", "double", cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.copytree(PROJECT / "examples" / "chain", folder / "chain")
    (folder / "loudest.py").write_text(DECLARED)
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    return folder


def complaints(checker: str, python: Path, folder: Path) -> list[str]:
    """Return the lines with the errors that a checker finds with the packages of a Python."""
    files = sorted(str(path) for path in folder.rglob("*.py"))
    command: list[str | Path] = [sys.executable, "-m", "mypy", "--strict"]
    command += ["--python-executable", python, "--cache-dir", folder / ".mypy_cache"]
    if checker == "pyright":
        script = modules_with("pyright@1.1.414") / "node_modules" / "pyright" / "index.js"
        command = ["node", script, "--pythonpath", python]
    done = subprocess.run(
        [*command, *files], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "error:" in line]


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_resolves_what_an_author_touches(
    installed: Installed, classes: Path, tmp_path: Path, checker: str
) -> None:
    assert complaints(checker, installed.python, classes) == []
    (tmp_path / "right.py").write_text(DECLARED)
    assert complaints(checker, HERE.python, tmp_path) == [], "in a checkout, as `make` sets it up"
    text = DECLARED
    for right, wrong in WRONG.items():
        assert right in text
        text = text.replace(right, wrong)
    (tmp_path / "wrong.py").write_text(text)
    found = "\n".join(complaints(checker, installed.python, tmp_path))
    for name in ("time_lft", "infr", "nothing", "payload"):
        assert name in found
    assert found.count("error:") == len(WRONG)
