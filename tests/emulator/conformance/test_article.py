"""AWS's sample for several models, written again: its known faults are found without Docker."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sagemaker_emulator.conformance.exchange import Request, Settings
from sagemaker_emulator.conformance.report import FAIL
from sagemaker_emulator.conformance.run import Examination
from sagemaker_emulator.host.limits import Limits

from tests.conftest import PROJECT

ARTICLE = Path(__file__).parent / "images" / "article"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket, which NGINX's worker may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def made(folder: Path) -> Path:
    """Return a folder with the program, as it would be in its image, on this machine."""
    program = shutil.copytree(ARTICLE, folder / "program")
    python = shlex.quote(sys.executable)
    variables = {"PATH": f"{program}:$PATH", "FOLDER": folder, "PYTHONPATH": PROJECT}
    exports = "".join(f'export {name}="{value}"\n' for name, value in variables.items())
    for name, command in (
        (folder / "serve", f"{exports}exec {python} {program}/serve"),
        (program / "tritonserver", f'exec {python} {ARTICLE}/tritonserver "$@"'),
    ):
        name.write_text(f"#!/bin/sh\n{command}\n")
        name.chmod(0o755)
    return folder


@pytest.mark.slow
def test_a_constant_ping_a_small_body_and_an_end_at_once_are_found(short: Path) -> None:
    def number(x: float) -> Request:
        return Request(b'{"x": %g}' % x, "application/json")

    settings = Settings(request=number(1), slow=number(1.1), limits=Limits(start_s=60))
    examination = Examination(str(made(short)), settings, lambda _: None)
    try:
        examination.first_life()
    finally:
        examination.subject.close()
    found = {one.check.name for one in examination.results if one.outcome == FAIL}
    assert found == {"ping.loading", "sizes.largest", "stop.drain"}
