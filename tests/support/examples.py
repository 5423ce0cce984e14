"""The commands in the examples' READMEs, and the output that is shown below them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.conftest import PROJECT
from tests.support.readme import same

EXAMPLES = PROJECT / "examples"
SHOWN = re.compile(r"```sh\n(.*?)```(?:\n```(?:json|text)\n(.*?)```)?", re.DOTALL)
SERVE = re.compile(r"^((?:[A-Z_]+=\S+[\s\\]+)+)\./serve$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A block of commands.

    Args:
        command: what is to be run, without the start of the server.
        settings: with which the server is started afterwards; `None` where it is not.
        output: what is shown below; empty where nothing is.

    """

    command: str
    settings: dict[str, str] | None
    output: str


def steps(example: str) -> Iterator[Step]:
    """Yield the blocks of an example's README in their order."""
    for block, output in SHOWN.findall((EXAMPLES / example / "README.md").read_text()):
        start = SERVE.search(block)
        settings = dict(re.findall(r"([A-Z_]+)=(\S+)", start[1])) if start else None
        yield Step(SERVE.sub("", block).strip(), settings, output.strip())


def workplace(folder: Path) -> Path:
    """Make a folder that looks like the project's, with a copy of the examples."""
    made = shutil.ignore_patterns("model.onnx", "model.plan", "environment*")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=made)
    for name in ("tests", "serve"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(
    command: str, folder: Path, ports: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run a block as a reader would, in the project's folder, with other ports of this machine."""
    for written, port in ports.items():
        command = command.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def is_as_shown(came: str, shown: str) -> bool:
    """Whether output is as shown, but for the last digits of numbers in JSON."""
    if came.strip() == shown or not shown.startswith("{"):
        return came.strip() == shown
    return same(json.loads(came), json.loads(shown))
