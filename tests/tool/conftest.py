from __future__ import annotations

import json
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
