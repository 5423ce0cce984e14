"""`dispatcher pack`: what is packed, and that it is the same each time."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import picture
from tests.support.emulate import emulated
from tests.support.quantize import CONFIG, TOML, conv_net, pictures
from tool.__main__ import main
from tool.pack.contents import contents_of

BACKUP = "config.pbtxt~"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with all that is left out, and links."""
    folder = tmp_path / "models"
    net = folder / "net"
    conv_net(tmp_path / "weights" / "model.onnx")
    (net / "1").mkdir(parents=True)
    (net / "1" / "model.onnx").symlink_to(tmp_path / "weights" / "model.onnx")
    (net / "config.pbtxt").write_text(CONFIG)
    (net / "dispatch.toml").write_text(TOML)
    (net / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    (folder / "copy").mkdir()
    for path in net.iterdir():
        (folder / "copy" / path.name).symlink_to(Path("..", "net", path.name))
    clients = folder / "code" / "clients"
    (clients / "__pycache__").mkdir(parents=True)
    (clients / "shared.py").write_text("X = 1\n")
    (clients / "shared.pyc").write_bytes(b"x")
    (clients / "bare.pyc").write_bytes(b"x")
    (clients / "__pycache__" / "shared.cpython-311.pyc").write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    for name in (".DS_Store", BACKUP, ".config.pbtxt.swp"):
        (net / name).write_text("x")
    (net / ".libs").mkdir()
    (net / ".libs" / "libx.so").write_bytes(b"x")
    (net / "start").write_text("#!/bin/sh\n")
    (net / "start").chmod(0o700)
    return folder


def pack(folder: Path, out: Path, *options: str) -> int:
    return main(["pack", str(folder), "--out", str(out), "--no-clients", *options])


def members(archive: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive) as packed:
        return {one.name: one for one in packed}


def test_links_are_replaced_and_what_is_never_read_is_left_out(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = models.parent / "model.tar.gz"
    assert pack(models, out) == 0
    found = members(out)
    parts = ("1", "1/model.onnx", "config.pbtxt", "dispatch.toml", "labels.txt")
    assert sorted(found) == sorted(
        [
            *("code", "code/clients", "code/clients/bare.pyc", "code/clients/shared.py"),
            *("copy", *(f"copy/{one}" for one in parts)),
            *("net", *(f"net/{one}" for one in parts), "net/.libs", "net/.libs/libx.so"),
            "net/start",
        ]
    )
    assert all(one.isdir() or one.isfile() for one in found.values())
    weights = (models.parent / "weights" / "model.onnx").read_bytes()
    with tarfile.open(out) as packed:
        assert packed.extractfile("copy/1/model.onnx").read() == weights  # type: ignore[union-attr]
    said = capsys.readouterr().out
    for text in ("net/1/model.onnx", ".git", "code/clients/__pycache__", "left out", " MB"):
        assert text in said


def test_the_same_bytes_wherever_and_whenever(models: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar.gz", tmp_path / "second.tar.gz"
    assert pack(models, first) == 0
    other = tmp_path / "elsewhere" / "other"
    shutil.copytree(models, other)  # follows links
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(path.stat().st_mode | stat.S_IRWXG)
    assert pack(other, second) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "no date"
    for one in members(first).values():
        assert (one.mtime, one.uid, one.gid, one.uname, one.gname) == (0, 0, 0, "", "")
        assert one.mode == (0o755 if one.isdir() or one.name == "net/start" else 0o644)
    (other / "net" / "labels.txt").write_text("a\nb\nc\nd\nf\n")
    assert pack(other, second) == 0
    assert first.read_bytes() != second.read_bytes()


def test_what_is_excluded_and_what_archives_are_is_not_packed(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = models / "model.tar.gz"
    assert pack(models, out) == 0
    content = out.read_bytes()
    assert pack(models, out) == 0
    assert out.read_bytes() == content
    other = models / "other.tar.gz"
    excluded = [word for one in ("copy", "net/*.so", "start") for word in ("--exclude", one)]
    assert pack(models, other, *excluded) == 0
    found = members(other)
    assert not found.keys() & {"model.tar.gz", "other.tar.gz"}
    assert "net/labels.txt" in found
    assert not [one for one in found if one.startswith("copy") or one.endswith((".so", "start"))]
    assert "net/.libs/libx.so" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            lambda net: (net / "labels2.txt").symlink_to("/nowhere/labels.txt"),
            "net/labels2.txt is a link to /nowhere/labels.txt, where there is no file",
        ),
        (lambda net: (net / "again").symlink_to(net.parent), "never ends"),
        (lambda net: os.mkfifo(net / "pipe"), "net/pipe is neither a file nor a folder"),
        (lambda net: Path(os.fsdecode(os.fsencode(net) + b"/\xff")).touch(), "not UTF-8"),
        (lambda net: (net / "config.pbtxt").write_text("{"), "correct the errors first"),
    ],
)
def test_what_cannot_be_packed(
    models: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], object], text: str
) -> None:
    mistake(models / "net")
    assert pack(models, models.parent / "model.tar.gz") in {1, 2}
    assert text in capsys.readouterr().err
    assert {one.name for one in models.parent.iterdir()} == {"models", "weights"}


def test_a_file_that_grows(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def grown(folder: Path, *how: Any) -> object:
        found = contents_of(folder, *how)
        (folder / "net" / "labels.txt").write_text("more than before\n" * 9)
        return found

    monkeypatch.setattr("tool.pack.command.contents_of", grown)
    monkeypatch.setattr("tool.pack.command.check_all", lambda *_, **__: [])
    out = models.parent / "model.tar.gz"
    assert pack(models, out) == 2
    assert "changed while it was packed" in capsys.readouterr().err
    assert {one.name for one in models.parent.iterdir()} == {"models", "weights"}


@pytest.mark.slow
def test_the_archive_is_served(models: Path, tmp_path: Path) -> None:
    """Unpacked as the service does, behind the emulated service, by the real container."""
    shutil.rmtree(models / "copy")
    out = tmp_path / "model.tar.gz"
    assert pack(models, out) == 0
    (tmp_path / "emulate").mkdir()
    (shown,) = pictures(tmp_path / "pictures", 1)
    body = {"modelname": "net", "payload": {"img": picture(shown)}}
    with emulated(
        tmp_path / "emulate",
        *(".", "--model", out, "--env", "MODEL_DIR_USE=instead", "--env", "MODEL_SERVER_WORKERS=1"),
    ) as endpoint:
        answer, _ = endpoint.invoke(json.dumps(body).encode(), ContentType="application/json")
    labels = {one.rpartition(":")[2] for one in json.loads(answer)["result"]}
    assert labels
    assert labels <= set("abcde")
