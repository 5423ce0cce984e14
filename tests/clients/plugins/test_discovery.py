"""Which files are taken for sources of clients, and which imports of authors keep working."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.base import Environment
from clients.plugins import discovery
from clients.plugins.discovery import LIBRARY, OWN_FOLDER, client_files, sources, stem
from clients.plugins.registry import load_clients
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton
from tests.test_architecture import ARROWS, files, imports

CLIENT = """
from clients.base import Client
class Mine(Client):
    modelname = "mine"
    example = {{}}
    def inference(self, payload):
        return {number}
"""


def test_the_library_s_own_files_are_no_sources() -> None:
    """They are neither imported as clients, nor watched for changes."""
    names = {stem(path) for path in client_files(OWN_FOLDER)}
    assert names >= LIBRARY  # none of them is gone
    used = {
        name.split(".")[1]
        for folder in ARROWS
        for path in files(folder)
        for name in imports(path)
        if name.startswith("clients.")
    }
    assert used & names <= LIBRARY
    assert "older_class" in LIBRARY  # which authors alone import
    found = {stem(Path(one.where)) for one in sources(PROJECT / "no_models")}
    assert found.isdisjoint(LIBRARY)


def test_a_class_s_file_that_was_added_to_the_folder_is_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "OWN_FOLDER", tmp_path)
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    for number in (1, 22):  # the second time it was changed
        (tmp_path / "mine.py").write_text(CLIENT.format(number=number))
        registry = load_clients(environment)
        assert registry.source("mine") == str(tmp_path / "mine.py")
        assert registry.clients["mine"].inference({}) == number
