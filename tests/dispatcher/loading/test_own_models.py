"""The repository's own models, whose folders come, go and change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import dispatcher.models.repository
from clients.errors import UnknownModel
from clients.triton.configuration import rename_config
from dispatcher.errors import BadModel
from dispatcher.models.control import ModelControl
from tests.support.loading import Hosting
from tests.support.mistakes import DEADLY, write_mistake


def model_at(folder: Path, toml: str = "") -> Path:
    """Write a model's folder, with a `dispatch.toml` where there is something in it."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"x")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"')
    if toml:
        (folder / "dispatch.toml").write_text(toml)
    return folder


def add(hosting: Hosting, folder: Path) -> None:
    """Add a folder to MODEL_REPOSITORY, after the start."""
    before = hosting.folders()
    hosting.folders = lambda: {**before, folder.name: folder}


@pytest.mark.parametrize("name", ["late", "a+b", "_x", "v1.2", "7"])
def test_a_folder_that_was_added_after_the_start_is_found_and_loaded(
    hosting: Hosting, tmp_path: Path, name: str
) -> None:
    """By two callers too; what comes from elsewhere may have such a name as well."""
    add(hosting, model_at(tmp_path / "models" / name))
    hosting.load_own(name)
    hosting.load_own(name)
    assert hosting.is_loaded(name)
    assert hosting.listed() == [name]
    assert (hosting.repository / name / "1" / "model.onnx").read_bytes() == b"x"
    hosting.unload(name)
    assert (hosting.repository / name).exists(), "it is the repository's own"
    hosting.load(f"{name}2", hosting.url)
    assert hosting.is_loaded(f"{name}2")


def test_one_that_another_worker_has_taken_in_meanwhile_is_loaded(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(hosting, hosting.folder)
    link = dispatcher.models.repository.link

    def late(folder: Path, place: Path) -> None:
        link(folder, place)
        link(folder, hosting.repository / "elsewhere")

    monkeypatch.setattr("dispatcher.models.repository.link", late)
    assert not hosting.take_in("elsewhere")
    assert [path.name for path in hosting.repository.iterdir()] == ["elsewhere"]
    assert not list(tmp_path.glob("aside*"))


@pytest.mark.parametrize("name", ["..", ".", "", "../elsewhere", "a/b", "nosuch", "x" * 5000])
def test_what_is_no_model_of_the_repository_is_not_found(
    hosting: Hosting, tmp_path: Path, name: str
) -> None:
    model_at(hosting.repository / "there")
    add(hosting, model_at(tmp_path / "models" / "late"))
    with pytest.raises(UnknownModel) as caught:
        hosting.load_own(name)
    assert caught.value.hint == "it has late, there"


def test_a_folder_that_was_removed_meanwhile_is_not_found_until_it_is_back(
    hosting: Hosting, tmp_path: Path
) -> None:
    """Wherever it is back: a folder of that name may come in MODEL_DIR."""
    folder = model_at(tmp_path / "models" / "late")
    add(hosting, folder)
    hosting.load_own("late")
    hosting.folders = dict
    shutil.rmtree(folder)
    with pytest.raises(UnknownModel):
        hosting.load_own("late")
    (hosting.repository / "late").unlink()
    (hosting.repository / "late").mkdir()  # as the prober does
    with pytest.raises(UnknownModel):
        hosting.load_own("late")
    add(hosting, model_at(tmp_path / "mounted" / "late"))
    hosting.load_own("late")
    assert (hosting.repository / "late").resolve() == tmp_path / "mounted" / "late"


@pytest.mark.parametrize("before", [b"\xef\xbb\xbfmax_batch_size: 0\n", None])
def test_a_configuration_that_was_edited_counts_at_the_next_load(
    hosting: Hosting, tmp_path: Path, before: bytes | None
) -> None:
    """Though Triton was given a copy of it, or there was none: a 0 that is written is obeyed."""
    folder = model_at(tmp_path / "models" / "late")
    if before is None:
        shutil.move(folder / "1" / "model.onnx", folder / "model.onnx")
        (folder / "1").rmdir()
        (folder / "config.pbtxt").unlink()
    else:
        (folder / "config.pbtxt").write_bytes(before)
    add(hosting, folder)
    hosting.load_own("late")
    place = hosting.repository / "late"
    for text in ("max_batch_size: 8\n", "max_batch_size: 0\n", "\ufeffmax_batch_size: 3\n"):
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        hosting.load_own("late")
        assert (place / "config.pbtxt").read_text() == text.removeprefix("\ufeff")
        assert (place / "1" / "model.onnx").exists()
    (folder / "config.pbtxt").write_text("instance_group { passive: true }")
    with pytest.raises(BadModel, match="and crashes Triton"):
        hosting.load_own("late")
    (folder / "config.pbtxt").unlink()
    hosting.load_own("late")
    assert not (place / "config.pbtxt").exists()
    assert not list(tmp_path.glob("aside*"))


def test_what_is_added_to_a_folder_without_versions_is_found(hosting: Hosting) -> None:
    """It is linked as at the start."""
    own, place = hosting.folder, hosting.repository / "elsewhere"
    add(hosting, own)
    hosting.load_own("elsewhere")
    assert (place / "1" / "model.onnx").exists()
    (own / "dispatch.toml").write_text('aliases = ["two"]')
    (own / "labels.txt").write_text("a")
    assert not (place / "dispatch.toml").exists()
    hosting.refresh()
    assert (place / "dispatch.toml").read_text() == 'aliases = ["two"]'
    assert (place / "labels.txt").read_text() == "a"
    (own / "dispatch.toml").unlink()
    hosting.load_own("elsewhere")
    assert not os.path.lexists(place / "dispatch.toml")


def test_a_model_that_lies_in_the_repository_itself_is_never_linked_over(
    hosting: Hosting, tmp_path: Path
) -> None:
    model_at(hosting.repository / "late")
    (hosting.repository / "late" / "own.txt").touch()
    add(hosting, model_at(tmp_path / "models" / "late"))
    hosting.load_own("late")
    hosting.refresh()
    assert (hosting.repository / "late" / "own.txt").exists()


def test_a_model_from_elsewhere_is_not_loaded_with_a_configuration_of_before(
    hosting: Hosting,
) -> None:
    hosting.load("one", hosting.url)
    with pytest.raises(BadModel, match="came by POST /models") as caught:
        hosting.load_own("one")
    assert caught.value.hint == "DELETE /models/one, then POST /models again"


def test_an_added_folder_that_cannot_be_loaded_leaves_nothing_until_it_is_mended(
    hosting: Hosting, tmp_path: Path
) -> None:
    """Such as a copy that has the name of the first."""
    hosting.renamed_config = rename_config
    folder = model_at(tmp_path / "models" / "late")
    add(hosting, folder)
    hosting.server.refuse_to_load = "no ONNX file"
    with pytest.raises(BadModel, match="no ONNX file"):
        hosting.load_own("late")
    hosting.server.refuse_to_load = ""
    for config, said, hint in (
        ("max_batchsize: 8", "cannot be read: ", ""),
        (
            'backend: "python"\nname: "double"\n',
            'config.pbtxt:2: `name` is "double", but the folder is "late"',
            'write name: "late", or leave the line out',
        ),
    ):
        (folder / "config.pbtxt").write_text(config)
        with pytest.raises(BadModel) as caught:
            hosting.load_own("late")
        assert caught.value.message.startswith("the model 'late' cannot be loaded: ")
        assert said in caught.value.message
        assert caught.value.hint == hint or not hint
        assert list(hosting.repository.iterdir()) == []
    for config in ('name: "late"\n', "max_batch_size: 8"):
        (folder / "config.pbtxt").write_text(config)
        hosting.load_own("late")


def test_an_added_folder_that_triton_must_not_see_is_not_linked(
    hosting: Hosting, tmp_path: Path
) -> None:
    fatal = write_mistake(tmp_path / "models", DEADLY[0])
    for folder in (fatal, model_at(tmp_path / "models" / "a b")):
        add(hosting, folder)
        with pytest.raises(BadModel, match="is not served"):
            hosting.load_own(folder.name)
    assert list(hosting.repository.iterdir()) == []


def test_a_model_is_found_by_an_alias_in_its_file(hosting: Hosting, tmp_path: Path) -> None:
    """Also one that nobody has read yet; not where its folder was named by a caller."""
    model_at(hosting.repository / "first", 'aliases = ["one"]')
    add(hosting, model_at(tmp_path / "models" / "second", 'aliases = ["two", "b+c"]'))
    control = ModelControl(hosting, Mock())
    found = [control.available_name(alias) for alias in ("one", "two", "b+c")]
    assert found == ["first", "second", "second"]
    model_at(tmp_path / "third", 'aliases = ["three"]')
    hosting.load("third", str(tmp_path / "third"))
    assert control.available_name("three") == ""


@pytest.mark.parametrize("left", ["a link", "an empty folder", "a folder of links"])
def test_the_name_of_a_folder_that_was_deleted_is_free(
    hosting: Hosting, tmp_path: Path, left: str
) -> None:
    """What would be said of it otherwise, to load what the repository has, is of no use."""
    place = hosting.repository / "gone"
    if left == "a link":
        place.symlink_to(tmp_path / "nothing")
    else:
        place.mkdir()
        (tmp_path / "aside").mkdir()
        links = place / "1" if left == "a folder of links" else tmp_path / "aside" / "gone"
        links.symlink_to(tmp_path / "nothing")
    hosting.load("gone", hosting.url)
    assert hosting.is_loaded("gone")
    assert (place / "1" / "model.onnx").exists()
