"""Unpack a `model.tar.gz` safely into a temporary folder.

Only folders and plain files are made there, below that folder alone; what else the archive holds is
a finding, since the platform does not take it either.
"""

from __future__ import annotations

import errno
import lzma
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from clients.model_files.findings import Findings
from container.model_check.models import NO_FILE
from container.trouble import Trouble

MOST_FILES = 100_000
PROGRAM_MODE, FILE_MODE = 0o755, 0o644  # the platform keeps the archive's own
OWNER_RUNS = 0o100
MOST_BYTES = 4 * 2**30  # to look at; what comes after these is as long as it is, but of zeros


def unpack(archive: Path, findings: Findings, most: float = MOST_BYTES) -> None:
    """Unpack an archive into the folder of `findings`.

    Args:
        archive: to unpack.
        findings: takes what the platform does not unpack.
        most: bytes that files get as they are; infinity for those that are to be served.

    Raises:
        Trouble: it is no such archive, or a damaged one; or there is no room for it.

    """
    try:
        with tarfile.open(archive, "r:*") as packed:
            left = most
            for count, member in enumerate(packed):
                if count == MOST_FILES:
                    raise Trouble(f"{archive} holds more than {MOST_FILES} files")
                left -= unpack_member(packed, member, findings, left)
    except (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Trouble(
                f"there is no room for {archive} in {findings.root}: set TMPDIR to a larger disk"
            ) from error
        reason = str(error).partition("\n")[0].rstrip(":")
        raise Trouble(
            f"{archive} cannot be read as a tar.gz: {reason}; expected that, or a folder"
        ) from error
    if archive.stat().st_size and not is_gzip(archive):
        findings.warning(archive, "is not packed with gzip", "pack it with `tar czf`")


def unpack_member(
    packed: tarfile.TarFile, member: tarfile.TarInfo, findings: Findings, most: float
) -> int:
    """Make one folder or file, or note why not; return the bytes written."""
    name = PurePosixPath(member.name)
    place = findings.root / name.as_posix().lstrip("/")
    if name.is_absolute() or ".." in name.parts:
        findings.error(
            Path(member.name),
            "leads out of the archive",
            "pack with relative names: `tar czf model.tar.gz -C FOLDER .`",
        )
    elif member.isdir():
        place.mkdir(parents=True, exist_ok=True)
    elif member.issym() or member.islnk():
        findings.error(
            place,
            f"is a link to {member.linkname}, which the platform does not unpack",
            "pack the file itself: `tar czf` with `--dereference --hard-dereference`",
        )
    elif not member.isfile():
        findings.error(place, *NO_FILE)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        source = packed.extractfile(member)
        with place.open("wb") as made:
            while member.size <= most and source and (piece := source.read(2**20)):
                if piece.strip(b"\0"):
                    made.write(piece)
                else:  # a hole, which takes no room
                    made.seek(len(piece), os.SEEK_CUR)
            written = made.tell()
            made.truncate(member.size)
        place.chmod(PROGRAM_MODE if member.mode & OWNER_RUNS else FILE_MODE)
        return written
    return 0


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"
