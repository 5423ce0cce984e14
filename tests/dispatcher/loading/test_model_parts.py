"""A folder with an ensemble and its steps, or with a Python model and those that it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import ModelFailed
from clients.triton.configuration import rename_config
from dispatcher.errors import AlreadyLoaded, BadModel
from dispatcher.models.load_unload import ModelLoader
from tests.support.fake_triton import FakeTriton
from tests.support.loading import wanted

CHAIN = """platform: "ensemble"
ensemble_scheduling {
  step [
    { model_name: "first" model_version: -1 },
    { model_version: -1 model_name: 'second' },
    { model_name: "of_the_repository" }
  ]
}
"""


def add(folder: Path, config: str, code: str = "") -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(code)


@pytest.fixture
def chain(hosting: ModelLoader, tmp_path: Path) -> Path:
    hosting.renamed_config = rename_config
    folder = tmp_path / "archive"
    add(folder / "chain", CHAIN)
    add(folder / "first", 'name: "first"\nbackend: "python"\n')
    add(folder / "second", 'backend: "python"\n', 'infer(model_name="asked")')
    add(folder / "asked", 'backend: "python"\n')
    (folder / "shared").mkdir()  # such as an environment
    return folder


def test_steps_get_names_of_their_own_and_what_code_asks_keeps_its_name(
    hosting: ModelLoader, chain: Path
) -> None:
    hosting.load("3f9c", str(chain))
    assert wanted(hosting) == ["3f9c", "3f9c.first", "3f9c.second", "asked"]
    text = (hosting.repository / "3f9c" / "config.pbtxt").read_text()
    assert text == f'name: "3f9c"\n{CHAIN}'.replace('"first"', '"3f9c.first"').replace(
        "'second'", '"3f9c.second"'
    )
    step = (hosting.repository / "3f9c.first" / "config.pbtxt").read_text()
    assert step.startswith('name: "3f9c.first"\n')


def test_two_folders_may_have_equal_steps(hosting: ModelLoader, tmp_path: Path) -> None:
    hosting.renamed_config = rename_config
    for number in "12":
        folder = tmp_path / number
        add(folder / "chain", CHAIN)
        add(folder / "first", f'backend: "python" # {number}\n')
        hosting.load(f"model{number}", str(folder))
    assert wanted(hosting) == ["model1", "model1.first", "model2", "model2.first"]


def test_a_model_that_code_asks_has_one_name_for_all(
    hosting: ModelLoader, chain: Path, tmp_path: Path
) -> None:
    hosting.load("one", str(chain))
    with pytest.raises(AlreadyLoaded, match=r"there is a model 'asked', and .* is another one"):
        hosting.load("two", str(chain))
    assert wanted(hosting) == ["asked", "one", "one.first", "one.second"]
    assert not list(hosting.repository.glob("two*"))


def test_parts_go_with_their_model(hosting: ModelLoader, chain: Path, server: FakeTriton) -> None:
    hosting.load("one", str(chain))
    hosting.unload("one")
    assert wanted(hosting) == []
    assert not list(hosting.repository.iterdir())
    assert server.unloaded == {"one", "one.first", "one.second", "asked"}
    hosting.load("one", str(chain))


def test_parts_of_a_model_that_was_lost_are_replaced(
    hosting: ModelLoader, chain: Path, server: FakeTriton
) -> None:
    hosting.load("one", str(chain))
    server.unloaded.add("one")
    hosting.load("one", str(chain))
    assert wanted(hosting) == ["asked", "one", "one.first", "one.second"]


def test_nothing_is_left_where_a_part_does_not_load(
    hosting: ModelLoader, chain: Path, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = server.load

    def refuse(model: str, *, timeout: float) -> None:
        if model == "one.second":
            raise ModelFailed("no such package")
        load(model, timeout=timeout)

    monkeypatch.setattr(server, "load", refuse)
    with pytest.raises(BadModel, match="second: no such package"):
        hosting.load("one", str(chain))
    assert wanted(hosting) == []
    assert not list(hosting.repository.iterdir())


def test_models_that_do_not_belong_together_are_refused(
    hosting: ModelLoader, tmp_path: Path
) -> None:
    folder = tmp_path / "two"
    add(folder / "a", 'backend: "python"\n')
    add(folder / "b", 'backend: "python"\n')
    with pytest.raises(BadModel, match=r"several models \(a, b\), and a and b of them") as caught:
        hosting.load("one", str(folder))
    assert "one ensemble and its steps" in caught.value.hint
    for name, other in ("ab", "ba"):
        (folder / name / "1" / "model.py").write_text(f"ask('{other}')")
    with pytest.raises(BadModel, match="none of them asks all others"):
        hosting.load("one", str(folder))


def test_a_file_of_the_archive_is_not_written_to(hosting: ModelLoader, chain: Path) -> None:
    """The list of parts has a name that a folder might have a file of."""
    (chain / "chain" / "model.parts").write_text("mine\n")
    hosting.load("one", str(chain))
    assert (chain / "chain" / "model.parts").read_text() == "mine\n"
