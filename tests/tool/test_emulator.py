"""`dispatcher emulate` and `conformance` are another package's."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import PROJECT
from tool.__main__ import main
from tool.commands import emulator


@pytest.mark.parametrize("command", ["emulate", "conformance"])
def test_it_is_given_the_command_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def call(arguments: list[str]) -> int:
        given.append(arguments)
        return 3

    def found(**which: Any) -> list[Any]:
        assert which == {"group": "console_scripts", "name": "sagemaker-emulator"}
        return [SimpleNamespace(load=lambda: call)]

    monkeypatch.setattr(emulator, "entry_points", found)
    assert main([command, "--help"]) == 3
    assert given == [[command, "--help"]]


def test_without_it_a_line_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulator, "entry_points", lambda **_: [])
    assert main(["emulate", "."]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dispatcher emulate: `pip install ")
    assert said.count("\n") == 1


def test_neither_the_image_nor_the_wheel_has_it() -> None:
    copied = [
        *(PROJECT / ".dockerignore").read_text().splitlines(),
        *tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
            "targets"
        ]["wheel"]["only-include"],
    ]
    assert copied[1] == "*"  # what follows is let in
    assert not [one for one in copied if "emulator" in one]
