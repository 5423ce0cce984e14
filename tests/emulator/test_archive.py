"""Archives are unpacked as the service does it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from sagemaker_emulator.archive import unpack_archive
from sagemaker_emulator.trouble import Trouble


def packed(folder: Path, *members: tuple[str, bytes | str, int]) -> Path:
    """Write an archive of names, contents and modes; a text is where a link leads."""
    with tarfile.open(folder / "model.tar.gz", "w:gz") as archive:
        for name, content, mode in members:
            info = tarfile.TarInfo(name)
            info.mode = mode
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return folder / "model.tar.gz"


def test_an_archive_is_unpacked_to_its_end_and_its_programs_can_be_run(tmp_path: Path) -> None:
    weights = b"first" + bytes(2**20) + b"last"
    files = (("run.sh", b"", 0o700), ("a/weights.bin", weights, 0o600), ("secret", b"", 0))
    unpack_archive(packed(tmp_path, *files), tmp_path / "out")
    made = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*.*")}
    assert made == {"run.sh": 0o755, "weights.bin": 0o644}
    assert (tmp_path / "out" / "secret").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "out" / "a" / "weights.bin").read_bytes() == weights


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("../outside.txt", b"", "outside the destination"),
        ("right/../../outside.txt", b"", "outside the destination"),
        ("labels.txt", "/etc/passwd", "labels.txt is a link to /etc/passwd"),
    ],
)
def test_what_an_archive_must_not_hold_is_refused(
    tmp_path: Path, name: str, content: bytes | str, message: str
) -> None:
    with pytest.raises(Trouble, match=message):
        unpack_archive(packed(tmp_path, (name, content, 0o644)), tmp_path / "out")
    assert not (tmp_path / "outside.txt").exists()
