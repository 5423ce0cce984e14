"""Where client classes come from: files, packages, and older layouts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from clients.base import Environment
from clients.plugins.registry import load_clients
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import HEAD, answering, ask, package, served
from tests.support.stand_ins import assert_error

__all__ = ["package"]  # the fixture


def test_the_entry_points_of_an_installed_package_are_clients(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    client = served(tmp_path, answering("1"))
    for name in ("ears", "single"):
        assert ask(client, name).json["result"] == "heard"
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"))
    assert registry.source("single") == "the entry point 'one' of ears"
    reasons = " ".join(registry.broken.values())
    assert "the entry point 'bad' of ears cannot be imported: ModuleNotFoundError" in reasons
    assert "ears:NUMBER is 5; expected a module, or a class" in reasons
    for name in [name for name in sys.modules if name.partition(".")[0] == "ears"]:
        del sys.modules[name]


def test_a_disabled_client_says_why_and_the_others_are_served(tmp_path: Path) -> None:
    made = "def __init__(self, it): super().__init__(it); self.example = {'a': np.zeros(2)}"
    for example in ("example = {'img': b'bytes'}", made):
        client = served(tmp_path, answering("1", example))
        said = "mine.py: its example is not JSON"
        assert_error(ask(client), 503, "client_disabled", said)
        assert ask(client, "healthy").status_code == 200
        assert "healthy" in client.get("/openapi.json").text


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("from .parts import words", "words.WORD"),
        ("from .parts.words import *", "WORD"),
        ("import json", "json.dumps('mine')[1:-1]"),
    ],
)
def test_a_package_imports_its_own_files(tmp_path: Path, statement: str, value: str) -> None:
    """Two have a file of the same name; what Python has by itself is not hidden."""
    for name in ("mine", "other"):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / "parts" / "words.py").write_text(f"WORD = {name!r}\n")
        (tmp_path / name / "json.py").write_text("raise RuntimeError('not this one')\n")
        text = answering(value, f"modelname = {name!r}").replace("'mine')[", f"{name!r})[")
        (tmp_path / name / "__init__.py").write_text(
            HEAD + f"{statement}\n" + textwrap.dedent(text)
        )
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    for name in ("mine", "other"):
        assert registry.clients[name].inference({}) == name


def test_a_bare_import_of_a_file_beside_the_class_says_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    (tmp_path / "mine.py").write_text(HEAD + "import helper\n" + textwrap.dedent(answering("1")))
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    (reason,) = registry.broken.values()
    assert "No module named 'helper'" in reason
    assert "write `from .helper import …`" in reason
