"""Clients are found, and one that cannot be used disables itself and says why."""

from __future__ import annotations

import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clients.base import Environment
from clients.model_files.model_folders import models_in
from clients.plugins.discovery import client_files, sources
from clients.plugins.registry import Registry, load_clients
from tests.conftest import PROJECT
from tests.support.fake_triton import FakeTriton

GOOD = """
from clients.base import Client

class Mine(Client):
    modelname = "mine"
    example = {"x": 1}

    def inference(self, payload):
        return payload["x"]
"""

PARAMETER = "\n    from clients.base import Parameter\n    parameters = {{'a': Parameter({})}}"


@pytest.fixture
def environment() -> Environment:
    return Environment(FakeTriton(), PROJECT / "model_repository")


def test_the_built_in_clients_are_found(environment: Environment) -> None:
    registry = load_clients(environment)
    assert set(registry.clients) == {"resnet", "yolov5", "bert_base"}
    assert registry.broken == {}


@pytest.mark.parametrize("name", ["mine.py", "mine/__init__.py", "errors.py"])
def test_a_file_or_a_folder_of_one_s_own_is_found(
    environment: Environment, tmp_path: Path, name: str
) -> None:
    """Its name cannot hide one of the project's own modules."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(GOOD)
    registry = load_clients(environment, [tmp_path])
    assert set(registry.clients) == {"resnet", "yolov5", "bert_base", "mine"}
    assert registry.clients["mine"].inference({"x": 5}) == 5


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import nothing_of_this_name", ["cannot be imported", "nothing_of_this_name"]),
        ("def broken(:", ["cannot be imported", "SyntaxError"]),
        ("raise RuntimeError('at import')", ["cannot be imported", "at import"]),
        (GOOD.replace("inference", "infer"), ["Mine", "lacks the method inference"]),
        (GOOD.replace('modelname = "mine"', ""), ["Mine", "no name"]),
        (GOOD.replace('"mine"', "5"), ["Mine", "no name"]),
        (GOOD.replace('example = {"x": 1}', ""), ["Mine", "no example"]),
        (
            GOOD.replace('"mine"', '"resnet"'),
            ["Mine", "'resnet' belongs to", "resnet/dispatch.toml"],
        ),
        (
            GOOD.replace('"mine"', '"mine"\n    model = "resnet"')
            + "    def __init__(self, environment):\n        raise OSError('no labels')",
            ["Mine", "cannot be made", "no labels"],
        ),
        (GOOD + "    parameters = {'a': 3}", ["Mine", "Parameter"]),
        (GOOD + "    aliases = 'other'", ["Mine", "its aliases are 'other'"]),
        (GOOD + "    model = 5", ["Mine", "its model is 5"]),
        (GOOD.replace('"mine"', '"a/b"'), ["Mine", "'a/b' may be a path"]),
        (GOOD + "    aliases = ('x', '../x')", ["Mine", "'../x' may be a path"]),
        (GOOD + PARAMETER.format("3, '1', 10"), ["Mine", "limits of its parameter 'a'"]),
        (GOOD + "Mine.__abstractmethods__ = 5", ["Mine", "cannot be registered: TypeError"]),
        (
            GOOD.replace('"mine"', '"mine"\n    model = "resnet"')
            + "    def __init__(self, environment):\n        pass\n\n"
            + "    def triton_model(self):\n        raise OSError('not now')",
            ["Mine", "cannot be made", "not now"],
        ),
    ],
)
def test_a_broken_one_disables_itself_and_is_named(
    environment: Environment, tmp_path: Path, source: str, words: list[str]
) -> None:
    (tmp_path / "bad.py").write_text(textwrap.dedent(source))
    (tmp_path / "other.py").write_text(GOOD.replace('"mine"', '"other"'))
    registry = load_clients(environment, [tmp_path])
    assert set(registry.clients) == {"resnet", "yolov5", "bert_base", "other"}
    (reason,) = registry.broken.values()
    assert str(tmp_path / "bad.py") in reason
    for word in words:
        assert word in reason


def registry_without_models(folder: Path, statement: str) -> Registry:
    """Return a registry with a class whose `__init__` has one statement more, and no models."""
    (folder / "clients").mkdir()
    (folder / "repository").mkdir()
    (folder / "clients" / "mine.py").write_text(
        GOOD
        + "    def __init__(self, environment):\n"
        + "        super().__init__(environment)\n"
        + textwrap.indent(textwrap.dedent(statement), " " * 8)
    )
    return load_clients(Environment(FakeTriton(), folder / "repository"), [folder / "clients"])


def test_entry_points_of_one_name_come_in_the_same_order_wherever_they_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [EntryPoint("ears", f"{package}:Ears", "x") for package in ("b", "c", "a")]
    for found in (group, group[::-1]):
        monkeypatch.setattr(
            "clients.plugins.discovery.entry_points", lambda *, found=found, **_: found
        )
        marks = [list(one.mark.values()) for one in sources(tmp_path) if one.installed]
        assert [mark[0].split()[-1] for mark in marks] == ["a:Ears", "b:Ears", "c:Ears"]


@pytest.mark.parametrize(
    "statement",
    [
        "(self.folder / 'labels.txt').read_text()",
        "open(bytes(self.folder / 'labels.txt'))",
        "from clients.text.tokenizer import load_tokenizer\nload_tokenizer(self.folder / 'x')",
        """
        try:
            (self.folder / "labels.txt").read_text()
        except OSError:
            raise ValueError("no labels")
        """,
    ],
    ids=["a file", "by its bytes", "transformers", "an error of one's own"],
)
def test_a_client_whose_model_was_left_out_is_not_served_and_not_broken(
    tmp_path: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    registry = registry_without_models(tmp_path, statement)
    assert registry.clients == {}
    assert registry.broken == {}
    assert f"there is no folder {tmp_path / 'repository' / 'mine'}" in caplog.text


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("self.top = topp", "NameError: name 'topp' is not defined"),
        ("open('/no/such/file')", "FileNotFoundError: "),
        ("raise ConnectionRefusedError('the database')", "ConnectionRefusedError: the database"),
        ("error = ValueError('round')\nraise error from error", "ValueError: round"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_mistake_in_a_client_without_a_model_of_its_own_is_named(
    tmp_path: Path, statement: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not taken for the lack of a model's folder, which such a class may not need."""
    registry = registry_without_models(tmp_path, statement)
    assert registry.clients == {}
    assert f"it cannot be made: {reason}" in registry.broken["mine"]
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("bad", ["import nothing_of_this_name\n", "def broken(:\n"])
def test_a_file_that_cannot_be_imported_disables_the_models_that_it_names(
    environment: Environment, tmp_path: Path, bad: str
) -> None:
    two = GOOD + GOOD.replace("Mine", "Other").replace('"mine"', "'other'")
    (tmp_path / "bad.py").write_text(bad + two)
    registry = load_clients(environment, [tmp_path])
    assert set(registry.broken) == {"mine", "other"}
    assert "bad.py cannot be imported" in registry.broken["mine"]
    (tmp_path / "good.py").write_text(GOOD)
    registry = load_clients(environment, [tmp_path])
    assert registry.clients["mine"].inference({"x": 5}) == 5
    assert set(registry.broken) == {f"mine ({tmp_path / 'bad.py'})", "other"}


def test_what_macos_adds_to_a_folder_is_no_client(tmp_path: Path) -> None:
    (tmp_path / "__MACOSX").mkdir()
    for name in ("._good.py", "__MACOSX/._good.py", "__MACOSX/__init__.py"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    (tmp_path / "good.py").touch()
    assert list(client_files(tmp_path)) == [tmp_path / "good.py"]


def test_a_folder_that_must_not_be_entered_is_passed_over(shut: Path) -> None:
    with pytest.raises(PermissionError):
        (shut / "lost+found" / "__init__.py").stat()
    assert list(client_files(shut)) == []
    assert list(models_in(shut)) == []
