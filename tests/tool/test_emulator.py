"""`dispatcher emulate` and `conformance` are another package's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
