"""The links to models' folders: to those that were deleted, and that cannot be served."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from clients.errors import InferenceError
from clients.families.base.dispatch_toml import authors
from clients.model_files.model_folders import authors_folder, link, models_in
from clients.triton.client import Triton
from container.repository.compose import compose
from dispatcher.models.links import keep_listable
from tests.support.mistakes import DEADLY, write_mistake


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    mounted, repository, aside = (tmp_path / name for name in ("mounted", "repository", "aside"))
    for name in ("here", "gone"):
        (mounted / name / "1").mkdir(parents=True)
    repository.mkdir()
    aside.mkdir()
    for folder in mounted.iterdir():
        (repository / folder.name).symlink_to(folder)
    (repository / "plain").mkdir()
    shutil.rmtree(mounted / "gone")
    return mounted, repository, aside


def test_a_link_that_leads_nowhere_is_an_empty_folder_until_it_leads_again(
    places: tuple[Path, Path, Path],
) -> None:
    mounted, repository, aside = places
    for _ in range(2):
        keep_listable(repository, aside)
        assert sorted(path.name for path in repository.iterdir()) == ["gone", "here", "plain"]
        assert not (repository / "gone").is_symlink()
        assert list((repository / "gone").iterdir()) == []
        assert (repository / "here" / "1").is_dir()
    (repository / "gone" / "1").mkdir()
    (mounted / "gone" / "1").mkdir(parents=True)
    keep_listable(repository, aside)
    assert (repository / "gone" / "1").is_dir(), "what is there meanwhile stays"
    (repository / "gone" / "1").rmdir()
    keep_listable(repository, aside)
    assert (repository / "gone").readlink() == mounted / "gone"
    assert list(aside.iterdir()) == []


@pytest.mark.parametrize("act", ["models", "load", "unload", "reload"])
def test_links_are_mended_before_triton_reads_them(
    places: tuple[Path, Path, Path], act: str
) -> None:
    """Else a folder that was just deleted fails what is done with another model."""
    _, repository, aside = places
    triton = Triton("127.0.0.1:1", repair=partial(keep_listable, repository, aside))
    arguments = [] if act == "models" else ["here"]
    with pytest.raises(InferenceError):
        getattr(triton, act)(*arguments, timeout=0.2)
    assert not (repository / "gone").is_symlink()
    triton.close()


@pytest.mark.parametrize("name", ["m", "1"])
@pytest.mark.parametrize(
    "files",
    [
        ["1/model.onnx"],
        ["1/model.onnx", "config.pbtxt"],
        ["model.onnx"],
        ["model.onnx", "labels.txt", "dispatch.toml"],
        ["model.onnx", "config.pbtxt"],
    ],
)
def test_the_folder_that_was_linked_is_found_again(
    tmp_path: Path, name: str, files: list[str]
) -> None:
    folder = tmp_path / "models" / name
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("\ufeff", encoding="utf-8")
    link(folder, tmp_path / "place")
    assert authors_folder(tmp_path / "place") == folder
    assert authors_folder(folder) == folder
    assert authors_folder(tmp_path / "nothing") == tmp_path / "nothing"


def test_a_file_is_called_what_its_author_calls_it(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    for file in ("model.onnx", "dispatch.toml", "client.py"):
        (folder / file).touch()
    link(folder, tmp_path / "m")
    assert authors(tmp_path / "m" / "dispatch.toml") == folder / "dispatch.toml"
    assert authors(str(tmp_path / "m" / "client.py")) == tmp_path / "m" / "client.py"
    entry = "the entry point 'x' of package"
    assert str(authors(entry)) == entry


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('backend: "onnxruntime"\ninput [\n  {\n    name: "x"\n  }\n]\n', "model"),
        ('input [ { name: "x" } ]\nname: "own"', "own"),
        ("name: 'own'", "own"),
        ('name: "../own"', "model"),
        ("name:", "model"),
        ('name: "own"  # größe', "model"),  # which is not UTF-8
    ],
)
def test_a_mounted_model_has_the_name_of_its_configuration(
    tmp_path: Path, text: str, name: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "config.pbtxt").write_bytes(text.encode("latin-1"))
    assert [found for found, _ in models_in(tmp_path)] == [name]


def test_a_model_that_cannot_be_read_is_left_out_and_named(shut: Path) -> None:
    said: list[str] = []
    assert list(models_in(shut, said.append)) == []
    for line, name, mode in zip(said, ("lost+found", "unlisted"), ("0", "111"), strict=True):
        assert line.startswith(f"{shut / name} is not served: it cannot be read; '{shut / name}' ")
        assert f"belongs to user {os.getuid()} (mode {mode}), and this runs as user" in line


def test_a_model_whose_name_a_shell_would_take_apart_is_left_out(tmp_path: Path) -> None:
    names = ["fine", "v1.2-b+c_d", "é", "space d", "a;b", "$(x)", "'"]
    for name in names:
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    said: list[str] = []
    made = compose(
        tmp_path / "repository", None, tmp_path / "models", instead=False, say=said.append
    )
    assert sorted(made) == sorted(names[:2])
    assert sorted(p.name for p in (tmp_path / "repository").iterdir()) == sorted(names[:2])
    assert len(said) == 5
    assert all("is not served: expected a name of letters" in line for line in said)


def test_a_model_of_which_triton_would_die_is_left_out(tmp_path: Path) -> None:
    models = tmp_path / "models"
    for fault in DEADLY:
        write_mistake(models, fault)
    passive = "instance_group [ { passive: %s } ]\n"
    for name, config in {
        "fine": b"",
        "one_works": (passive % "true" + passive % "false").encode(),
        "unreadable": b"instance_group [ { passive: true",
        "warm": b'backend: "python" model_warmup { batch_size: 5 }',
        "volume": b'model_warmup { batch_size: 1 inputs { key: "x" value '
        b"{ data_type: TYPE_UINT8 dims: [ 1, 512, 1024, 1024 ] zero_data: true } } }",
        "engine": b'platform: "tensorrt_plan" model_warmup { batch_size: 8 }',
        "long": b'output { label_filename: "%s" }' % (b"x" * 300),
        "of_windows": "# schön\n".encode("latin-1") + (passive % "True").encode(),
    }.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_bytes(config)
    said: list[str] = []
    made = compose(tmp_path / "repository", models, tmp_path, instead=True, say=said.append)
    assert made == ("engine", "fine", "long", "one_works", "unreadable", "volume", "warm")
    assert sorted(p.name for p in (tmp_path / "repository").iterdir()) == list(made)
    (line,) = [line for line in said if "label_dot" in line and "is not served" in line]
    assert line == (
        f'{models / "label_dot"} is not served: config.pbtxt: `label_filename` is ".", which is '
        "no file, and crashes Triton: name a file with a label in each line"
    )
    without_a_gpu = [line for line in said if line.startswith("engine: ")]
    assert len(said) == 1 + len(DEADLY) + 1 + len(without_a_gpu)


def composed(tmp_path: Path, config: bytes | None, *files: str) -> tuple[Path, Path]:
    """Return the folder of a model, and its place in the repository that is composed."""
    folder = tmp_path / "mounted" / "m"
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    if config is not None:
        (folder / "config.pbtxt").write_bytes(config)
    (tmp_path / "none").mkdir()
    compose(tmp_path / "made", tmp_path / "mounted", tmp_path / "none", instead=False, say=print)
    return folder, tmp_path / "made" / "m"


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_triton_reads_no_byte_order_mark(tmp_path: Path, coding: str) -> None:
    """It takes UTF-8 without one; what its folder has besides is linked."""
    text = 'backend: "python"\r\n# größe'.encode(coding)
    model, place = composed(tmp_path, text, "1/model.py", "labels.txt")
    expected = b'backend: "python"\r\n# gr\xc3\xb6\xc3\x9fe'
    assert (place / "config.pbtxt").read_bytes() == expected
    for name in ("1", "labels.txt"):
        assert (place / name).readlink() == model / name


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        ("$$TRITON_MODEL_DIRECTORY/../env.tar.gz", "{folder}/../env.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/..", "{folder}/.."),
        ("$$TRITON_MODEL_DIRECTORY/./../../envs/a", "{folder}/./../../envs/a"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", None),
        ("$$TRITON_MODEL_DIRECTORY/..env/a", None),
        ("/envs/../a", None),
    ],
)
def test_an_environment_beside_a_model_is_named_by_its_own_path(
    tmp_path: Path, value: str, changed: str | None
) -> None:
    """Triton would look for it beside the links."""
    text = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }\n'
    folder, place = composed(tmp_path, (text % value).encode(), "1/model.py")
    assert place.is_symlink() == (changed is None)
    expected = (changed or value).format(folder=folder)
    assert (place / "config.pbtxt").read_text() == text % expected
    assert authors_folder(place) == folder


def test_a_configuration_may_lie_beside_a_plain_model_file(tmp_path: Path) -> None:
    """What a system left beside the folder is no model."""
    for litter in ("__MACOSX", ".ipynb_checkpoints", "._m"):
        (tmp_path / "mounted" / litter / "1").mkdir(parents=True)
    _, place = composed(tmp_path, b"max_batch_size: 16", "model.onnx")
    assert (place / "config.pbtxt").read_text() == "max_batch_size: 16"
    assert (place / "1" / "model.onnx").is_file()
    assert not (place / "model.onnx").exists()
    assert [path.name for path in place.parent.iterdir()] == ["m"]
