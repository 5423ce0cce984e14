"""Every example is run as its README says, and prints what it shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.conftest import free_ports, running
from tests.support.examples import EXAMPLES, Step, is_as_shown, run, steps, workplace

NAMES = sorted(
    path.parent.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/**/README.md")
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
    assert is_as_shown(done.stdout, step.output), done.stdout
