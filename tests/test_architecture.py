"""Imports point one way, and one file alone knows Triton's client library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import PROJECT

# What each folder may import of the others.
ARROWS = {
    "clients": set(),
    "dispatcher": {"clients"},
    # container starts the dispatcher by a command; it shares the table of settings, checks the file
    # of keys before the start, exchanges status files, and reads models' folders with the same
    # eyes, nothing else.
    "container": {
        "clients.repository.config_text",
        "clients.repository.deadly",
        "clients.repository.files",
        "clients.repository.model_folders",
        "clients.triton.server",
        "dispatcher.settings",
        "dispatcher.auth.api_keys",
        "dispatcher.readiness.status_file",
    },
    # The tool looks at what the others would do; none of them knows it.
    "tool": {"clients", "container", "dispatcher.settings", "dispatcher.auth.api_keys"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def files(folder: str) -> list[Path]:
    found = sorted((PROJECT / folder).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("folder", ARROWS)
def test_imports_point_one_way(folder: str) -> None:
    for path in files(folder):
        for name in imports(path):
            top = name.partition(".")[0]
            if top in ARROWS and top != folder:
                allowed = ARROWS[folder]
                assert any(f"{name}.".startswith(f"{a}.") for a in allowed), f"{path}: {name}"


def test_one_file_alone_imports_the_client_library_of_triton() -> None:
    users = {
        str(path.relative_to(PROJECT))
        for folder in ARROWS
        for path in files(folder)
        if any(name.partition(".")[0] == "tritonclient" for name in imports(path))
    }
    assert users == {"clients/triton/client.py"}


@pytest.mark.parametrize(
    ("folder", "library"),
    [
        ("clients", "flask"),
        ("clients", "werkzeug"),
        ("dispatcher", "numpy"),
        ("dispatcher", "cv2"),
        ("dispatcher", "PIL"),
        ("clients", "torch"),
        ("dispatcher", "torch"),
        ("clients", "tensorflow"),
    ],
)
def test_each_folder_keeps_to_its_own_business(folder: str, library: str) -> None:
    for path in files(folder):
        assert library not in {name.partition(".")[0] for name in imports(path)}, path
