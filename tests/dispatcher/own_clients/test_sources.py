"""Where client classes come from: files, packages, and older layouts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from clients.base import Environment
from clients.plugins.registry import load_clients
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
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


BASED = """
from clients.base import Client
from base import Base

class Old{number}(Base, Client):
    modelname = "old{number}"
    example = {{}}

    def inference(self, payload):
        {lazily}
        return self.greeting
"""


def write_based(folder: Path, base: Path, number: int, lazily: str = "pass") -> None:
    """Write a class whose base is imported by a bare name."""
    (folder / f"old{number}").mkdir()
    (folder / f"old{number}" / "__init__.py").write_text(f"from .inference import Old{number}\n")
    (folder / f"old{number}" / "inference.py").write_text(
        BASED.format(number=number, lazily=lazily)
    )
    base.write_text(f"import helper_of_base\nclass Base:\n    greeting = 'from {number}'\n")
    base.with_name("helper_of_base.py").touch()


@pytest.mark.parametrize(
    "lazily", ["pass", "from base import Base; assert Base in type(self).__mro__"]
)
def test_a_class_keeps_the_base_beside_it(tmp_path: Path, lazily: str) -> None:
    """Two have one each, a third's lies beside its folder; none is seen by others."""
    for number in (1, 2):
        write_based(tmp_path, tmp_path / f"old{number}" / "base.py", number, lazily)
    (tmp_path / "third").mkdir()
    write_based(tmp_path / "third", tmp_path / "third" / "base.py", 3, lazily)
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    registry = load_clients(environment, [tmp_path, tmp_path / "third"])
    assert registry.broken == {}
    app = make_app(read_settings({}), registry, environment, quiet())
    for number in (1, 2, 3):
        assert ask(app.test_client(), f"old{number}", {}).json["result"] == f"from {number}"
    assert not {"base", "helper_of_base", "inference"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("import parts.words", "parts.words.WORD"),
        ("import parts.words as w", "w.WORD"),
        ("from parts import words", "words.WORD"),
        ("from parts.words import *", "WORD"),
        ("import parts", "parts.AGAIN"),
        ("import json", "json.dumps('mine')[1:-1]"),
    ],
)
def test_what_lies_beside_a_file_is_imported_in_any_form(
    tmp_path: Path, statement: str, value: str
) -> None:
    """What Python has by itself comes first, as ever."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts.words import WORD as AGAIN\n")
    (tmp_path / "parts" / "words.py").write_text("WORD = 'mine'\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text(HEAD + f"{statement}\n" + textwrap.dedent(answering(value)))
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    assert registry.clients["mine"].inference({}) == "mine"


def test_what_is_not_beside_a_file_either_is_named(tmp_path: Path) -> None:
    write_based(tmp_path, tmp_path / "base.py", 1)
    (tmp_path / "base.py").rename(tmp_path / "elsewhere.py")
    registry = load_clients(Environment(FakeTriton(), tmp_path / "no_models"), [tmp_path])
    (reason,) = (r for r in registry.broken.values() if "old1" in r)
    assert "No module named 'base'" in reason
