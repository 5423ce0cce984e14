"""`dispatcher check` on archives: what they must not hold, and how they are packed."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.check import Check
from tests.support.mistakes import MISTAKES
from tests.support.mistakes.mistake import (
    write_mistake,
    write_right,
)
from tool.__main__ import main


def packed(path: Path, *members: tuple[str, bytes | str], mode: Any = "w:gz") -> Path:
    """Write an archive; a text is where a link leads."""
    with tarfile.open(path, mode) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                file.addfile(info)
            else:
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_is_checked_as_its_folder_is(tmp_path: Path, check: Check) -> None:
    write_right(tmp_path / "root", "right")
    write_mistake(tmp_path / "root", MISTAKES[0])
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "root", ".")
    assert check(tmp_path / "model.tar.gz") == check(tmp_path / "root")


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (("../outside.txt", b"x"), "leads out of the archive"),
        (("/absolute.txt", b"x"), "leads out of the archive"),
        (("right/../../outside.txt", b"x"), "leads out of the archive"),
        (("right/labels.txt", "/etc/passwd"), "is a link to /etc/passwd"),
        (("right/1", "../elsewhere"), "is a link to ../elsewhere"),
    ],
)
def test_what_an_archive_must_not_hold_is_named_and_not_unpacked(
    tmp_path: Path, check: Check, member: tuple[str, bytes | str], words: str
) -> None:
    folder = write_right(tmp_path, "right")
    files = [(f"right/{p.relative_to(folder)}", p.read_bytes()) for p in folder.rglob("*.*")]
    before = sorted(tmp_path.rglob("*"))
    archive = packed(tmp_path / "model.tar.gz", member, *files)
    code, found = check(archive)
    assert code == 1
    assert words in found[0]["message"]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, archive])


def test_hard_links_are_named_with_what_packs_the_files(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path / "root", "right")
    (folder / "copy.bin").hardlink_to(folder / "1" / "model.onnx")
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "root", ".")
    code, found = check(tmp_path / "model.tar.gz", "--no-clients")
    assert code == 1
    assert any("--hard-dereference" in one["fix"] for one in found)


@pytest.mark.parametrize("damage", ["cut", "text", "zip", "xz", "none"])
def test_what_is_no_archive_is_said(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.tar.gz"
    if damage == "cut":
        whole = packed(path, ("a/1/model.onnx", os.urandom(100_000))).read_bytes()
        path.write_bytes(whole[:50_000])
    elif damage == "xz":
        packed(path, ("a/1/model.onnx", os.urandom(100_000)), mode="w:xz")
        whole = bytearray(path.read_bytes())
        whole[50_000:50_100] = bytes(100)
        path.write_bytes(whole)
    elif damage == "text":
        path.write_text("this is no archive")
    elif damage == "zip":
        path.write_bytes(b"PK\x03\x04")
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dispatcher check: ")
    assert said.count("\n") == 1


def test_an_archive_that_is_not_gzip_is_a_warning(tmp_path: Path, check: Check) -> None:
    folder = write_right(tmp_path, "right")
    files = [(f"right/{p.relative_to(folder)}", p.read_bytes()) for p in folder.rglob("*.*")]
    code, found = check(packed(tmp_path / "model.tar", *files, mode="w:"), "--no-clients")
    assert code == 0, "warnings alone are no error"
    assert [one["level"] for one in found] == ["warning"]
    assert "gzip" in found[0]["message"]
