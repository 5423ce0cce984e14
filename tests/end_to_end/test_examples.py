"""Every example is run as its README says, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import running
from tests.support.examples import EXAMPLES, is_as_shown, run, steps, workplace

NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(
        r"^\| \[(.*?)\]\(\1/README\.md\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lambda"])  # it wants AWS
def test_an_example_does_what_its_readme_says(name: str, tmp_path: Path) -> None:
    folder = workplace(tmp_path)
    found = list(steps(name))
    (start,) = [number for number, step in enumerate(found) if step.settings]
    for step in found[: start + 1]:
        done = run(step.command, folder)
        if done.returncode and "pip install" in step.command:
            pytest.skip(f"its packages cannot be fetched here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
        assert is_as_shown(done.stdout, step.output), done.stdout
    with running(folder, **(found[start].settings or {})) as endpoint:
        assert endpoint.call("/ping").status == 200
        assert found[start + 1 :], "it asks nothing"
        for step in found[start + 1 :]:
            assert step.output, f"it does not show what comes of: {step.command}"
            done = run(step.command, folder, f"http://127.0.0.1:{endpoint.port}")
            assert done.returncode == 0, done.stderr
            assert is_as_shown(done.stdout, step.output), done.stdout
