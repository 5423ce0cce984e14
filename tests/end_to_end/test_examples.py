"""Every example is run as its README says, and prints what it shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.conftest import PROJECT, free_ports, running
from tests.support.readme import same

EXAMPLES = PROJECT / "examples"
SHOWN = re.compile(r"```sh\n(.*?)```(?:\n```(?:json|text)\n(.*?)```)?", re.DOTALL)
SERVE = re.compile(r"^((?:[A-Z_]+=\S+[\s\\]+)+)\./serve$", re.MULTILINE)
NAMES = sorted(
    path.parent.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/**/README.md")
)


class Step(NamedTuple):
    """A block of commands, the server that is started after them, and what is shown below."""

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
    for name in ("tests", "serve", "model_repository"):
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
        timeout=1800,
        check=False,
    )


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(
        r"^\| \[(.*?)\]\(\1/README\.md\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lambda"])  # it wants AWS
def test_an_example_does_what_its_readme_says(name: str, tmp_path: Path) -> None:
    if name == "tensorrt" and shutil.which("nvidia-smi"):
        pytest.skip("it shows what is printed where there is no GPU")
    folder = workplace(tmp_path)
    found = list(steps(name))
    starts = [number for number, step in enumerate(found) if step.settings]
    first = starts[0] + 1 if starts else len(found)  # `tensorrt` cannot be served without a GPU
    for step in found[:first]:
        check(step, folder)
    if not starts:
        assert any(step.output for step in found), "it shows nothing"
        return
    settings = dict(found[starts[0]].settings or {})
    ports = {settings[key]: str(free_ports(1)[0]) for key in settings if key.endswith("_PORT")}
    settings |= {key: ports[value] for key, value in settings.items() if value in ports}
    with running(folder, **settings) as endpoint:
        ports["8080"] = str(endpoint.port)
        assert endpoint.call("/ping").status == 200
        assert found[first:], "it asks nothing"
        for step in found[first:]:
            assert step.output, f"it does not show what comes of: {step.command}"
            check(step, folder, ports)


def check(step: Step, folder: Path, ports: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a block, and compare its output with what is shown."""
    done = run(step.command, folder, ports)
    if done.returncode and "pip install" in step.command:
        pytest.skip(f"its packages cannot be fetched here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    came, shown = done.stdout.strip(), step.output
    # In JSON the last digits of numbers may differ.
    assert came == shown or (shown.startswith("{") and same(json.loads(came), json.loads(shown))), (
        done.stdout
    )
