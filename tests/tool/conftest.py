from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.check import Check
from tests.support.quantize import CONFIG, TOML, conv_net, pictures
from tool.__main__ import main


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a path; return the exit code and the findings."""

    def run(path: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
        code = main(["check", str(path), "--json", *options])
        return code, json.loads(capsys.readouterr().out)["findings"]

    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A repository with one model and samples for it."""
    conv_net(tmp_path / "models" / "net" / "1" / "model.onnx")
    folder = tmp_path / "models" / "net"
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "dispatch.toml").write_text(TOML)
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    pictures(tmp_path / "samples", 12)
    return tmp_path


def python_with(folder: Path, *packages: str) -> Path:
    """Return a Python with some packages; the test is skipped where they cannot be had."""
    python = folder / "bin" / "python"
    for command in (
        ("venv", "--python", sys.executable, folder),
        ("pip", "install", "--python", python, *packages),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "uv", "--quiet", *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=280,
        )
        if done.returncode:
            pytest.skip(f"{packages} cannot be installed here: {done.stderr[-300:]}")
    return python
