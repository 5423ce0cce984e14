from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "container.py"


@pytest.fixture(scope="session")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program `serve`, as a checkout has one."""
    folder = tmp_path_factory.mktemp("container")
    serve = folder / "serve"
    serve.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {PROGRAM}\n")
    serve.chmod(0o755)
    return folder
