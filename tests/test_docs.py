"""The documentation is what the code does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dispatcher.settings import rows
from tests import readme
from tests.conftest import PROJECT, Endpoint


def test_the_readme_has_a_request_per_model() -> None:
    commands = " ".join(command for command, _ in readme.requests())
    for name in ("resnet", "yolov5", "bert_base"):
        assert name in commands


@pytest.mark.parametrize(("command", "shown"), readme.requests())
def test_the_readme_s_requests_are_answered_as_it_shows(
    endpoint: Endpoint, command: str, shown: Any
) -> None:
    came = readme.run(command, f"http://127.0.0.1:{endpoint.port}")
    assert readme.same(came, shown), came


def test_an_answer_that_differs_is_seen() -> None:
    for came, shown in [
        ({"a": 1}, {"a": 2}),
        (["1.5:3:cat"], ["1.5:3:dog"]),
        (["1.5:3:cat"], ["1.9:3:cat"]),
        ([1, 2], [1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ("x", "y"),
    ]:
        assert not readme.same(came, shown)


def test_every_setting_is_documented_as_it_is() -> None:
    table = {}
    for line in (PROJECT / "docs" / "settings.md").read_text().splitlines():
        if match := re.match(r"\| `([A-Z_]+)` \| (.*?) \| (.*) \| (.*) \|$", line):
            table[match[1]] = match.groups()[1:]
    expected = {}
    for row in rows():
        default = row.default.removeprefix(f"{PROJECT}/")
        expected[row.variable] = (
            f"`{default}`" if default else "nothing",
            row.meaning,
            row.expected,
        )
    assert table == expected


def test_every_link_leads_somewhere() -> None:
    for page in [PROJECT / "README.md", *PROJECT.glob("docs/*.md"), PROJECT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_make_command_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    pages = (PROJECT / "README.md").read_text() + (PROJECT / "docs" / "settings.md").read_text()
    assert set(re.findall(r"`?make ([a-z-]+)", pages)) <= targets
