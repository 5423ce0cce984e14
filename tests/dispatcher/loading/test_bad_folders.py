"""Folders and configurations that cannot be loaded."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from clients.triton.configuration import rename_config
from dispatcher.errors import BadModel, OutOfMemory
from dispatcher.models.load_unload import ModelLoader
from tests.support.fake_triton import FakeTriton
from tests.support.loading import Hosting


def test_what_says_how_a_model_is_asked_is_that_of_the_load(hosting: Hosting) -> None:
    """Else a web worker that starts later would serve another one than those beside it."""
    file = hosting.folder / "dispatch.toml"
    file.write_text('aliases = ["two"]')
    hosting.load("one", hosting.url)
    file.write_text('aliases = ["three"]')
    assert (hosting.repository / "one" / file.name).read_text() == 'aliases = ["two"]'
    file.unlink()
    assert (hosting.repository / "one" / file.name).read_text() == 'aliases = ["two"]'


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("dispatch.toml", b" " * (2**20 + 1), r"dispatch\.toml has more than 1 MiB"),
        ("config.pbtxt", b'name: "\xff\xfe"', "is not UTF-8"),
        (
            "config.pbtxt",
            b"dynamic_batching { }\nsequence_batching { }",
            "elsewhere cannot be loaded: .*dynamic_batching",
        ),
        (
            "config.pbtxt",
            b"max_batch_size: 99999999999",
            "elsewhere cannot be loaded: .*99999999999",
        ),
        ("1", b"", r"elsewhere/1: File exists"),  # in the place of a version's folder
    ],
)
def test_a_file_that_cannot_be_taken_is_named(
    hosting: Hosting, file: str, content: bytes, words: str
) -> None:
    hosting.renamed_config = rename_config
    (hosting.folder / file).write_bytes(content)
    with pytest.raises(BadModel, match=words) as raised:
        hosting.load("one", hosting.url)
    assert not (hosting.repository / "one").exists()
    assert ("1/model.onnx" in raised.value.hint) == (file == "1")


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_configuration_as_editors_of_windows_save_it(hosting: Hosting, coding: str) -> None:
    hosting.renamed_config = rename_config
    text = 'backend: "python"\r\nmax_batch_size: 8\r\n'
    (hosting.folder / "config.pbtxt").write_bytes(text.encode(coding))
    hosting.load("one", hosting.url)
    written = (hosting.repository / "one" / "config.pbtxt").read_bytes().decode("ascii")
    assert sorted(written.splitlines()) == ['backend: "python"', "max_batch_size: 8", 'name: "one"']


def test_what_systems_leave_beside_the_only_folder_is_passed_over(hosting: Hosting) -> None:
    """As in what macOS packs, also where the second folder looks like a model itself."""
    folder = hosting.folder
    (folder / "net").mkdir()
    (folder / "model.onnx").rename(folder / "net" / "model.onnx")
    (folder / "__MACOSX" / "1").mkdir(parents=True)
    for name in ("._net", ".DS_Store", "Thumbs.db", "__MACOSX/._net", "__MACOSX/1/._model.onnx"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    hosting.load("one", str(folder))
    assert (hosting.repository / "one" / "1").resolve() == folder / "net"


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("max_batch_size: 0\n", 'name: "one"\nmax_batch_size: 0\n'),
        ('name: "two", max_batch_size: 0', 'name: "one", max_batch_size: 0'),
        ("# a note\nname: 'two'; backend: \"python\"", '# a note\nname: "one"; backend: "python"'),
        ('input { name: "x" }', 'name: "one"\ninput { name: "x" }'),
        ("", 'name: "one"\n'),
    ],
)
def test_a_configuration_is_renamed_and_nothing_else(text: str, renamed: str) -> None:
    """A message of protobuf loses a `max_batch_size: 0`, which keeps requests apart."""
    assert rename_config(text, "one") == renamed


@pytest.mark.parametrize(
    ("hidden", "mode", "message"),
    [
        ("inner", 0o000, "inner.*: Permission denied"),
        ("inner", 0o444, "inner.*: Permission denied"),
        (".", 0o444, "`url` is"),
        ("config.pbtxt", 0o000, "config.pbtxt: Permission denied"),
    ],
)
def test_what_may_not_be_read_is_named(hidden: str, mode: int, message: str) -> None:
    with TemporaryDirectory() as name:  # one that others may enter, unlike pytest's
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "repository").mkdir()
        (folder / "repository").chmod(0o777)
        model = folder / "elsewhere"
        (model / "inner" / "1").mkdir(parents=True)
        if hidden != "inner":
            (model / "model.onnx").touch()
            (model / "config.pbtxt").touch()
        (model / hidden).chmod(mode)
        hosting = ModelLoader(folder / "repository", (), lambda text, _: text, FakeTriton(), 10)
        with somebody_else(), pytest.raises(BadModel, match=message):
            hosting.load("one", str(model))
        assert list((folder / "repository").iterdir()) == []
        assert sorted(path.name for path in folder.iterdir()) == ["elsewhere", "repository"]


@contextmanager
def somebody_else() -> Iterator[None]:
    """Be who may read no more than others may, where this is root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_full_disk_is_no_bad_model(hosting: Hosting, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(path: Path, text: str, encoding: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(OutOfMemory, match="RUN_DIR: No space left on device"):
            hosting.load("one", hosting.url)
    hosting.load("one", hosting.url)


def test_a_link_to_itself(hosting: Hosting, tmp_path: Path) -> None:
    hosting.roots = (tmp_path,)
    (hosting.folder / "self").symlink_to("self")
    with pytest.raises(BadModel, match="cannot be followed"):
        hosting.load("one", hosting.url)
