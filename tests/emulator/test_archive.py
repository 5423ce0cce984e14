"""Archives are unpacked as the service does it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from sagemaker_emulator.archive import unpack_archive
from sagemaker_emulator.trouble import Trouble


def test_a_program_of_an_archive_can_be_run_where_it_is_unpacked(tmp_path: Path) -> None:
    modes = {"run.sh": 0o700, "model.onnx": 0o600, "secret": 0}
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        for name, mode in modes.items():
            info = tarfile.TarInfo(name)
            info.mode = mode
            archive.addfile(info)
    unpack_archive(tmp_path / "model.tar.gz", tmp_path / "model")
    made = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert made == {"run.sh": 0o755, "model.onnx": 0o644, "secret": 0o644}


def test_what_is_to_be_served_is_unpacked_to_its_end(tmp_path: Path) -> None:
    weights = b"first" + bytes(2**20) + b"last"
    info = tarfile.TarInfo("a/1/weights.bin")
    info.size = len(weights)
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.addfile(info, io.BytesIO(weights))
    unpack_archive(tmp_path / "model.tar.gz", tmp_path / "out")
    assert (tmp_path / "out/a/1/weights.bin").read_bytes() == weights


@pytest.mark.parametrize(
    ("name", "link", "message"),
    [
        ("../outside.txt", None, "outside the destination"),
        ("right/../../outside.txt", None, "outside the destination"),
        ("labels.txt", "/etc/passwd", "labels.txt is a link to /etc/passwd"),
    ],
)
def test_what_an_archive_must_not_hold_is_refused(
    tmp_path: Path, name: str, link: str | None, message: str
) -> None:
    info = tarfile.TarInfo(name)
    if link:
        info.type, info.linkname = tarfile.SYMTYPE, link
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.addfile(info)
    with pytest.raises(Trouble, match=message):
        unpack_archive(tmp_path / "model.tar.gz", tmp_path / "out")
    assert not (tmp_path / "outside.txt").exists()
