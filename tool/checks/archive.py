"""Unpack a `model.tar.gz` safely into a temporary folder.

Only folders and plain files are made there, below that folder alone; what else the archive holds is
a finding, since the platform does not take it either.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from clients.model_files.findings import Findings
from container.model_check.models import NO_FILE
from container.trouble import Trouble

PROGRAM_MODE, FILE_MODE = 0o755, 0o644  # the platform keeps the archive's own
OWNER_RUNS = 0o100


def unpack(archive: Path, findings: Findings) -> None:
    """Unpack an archive into the folder of `findings`, which take what the platform does not."""
    try:
        with tarfile.open(archive, "r:*") as packed:
            for member in packed:
                unpack_member(packed, member, findings)
    except (tarfile.TarError, EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise Trouble(
            f"{archive} cannot be read as a tar.gz, or not unpacked in {findings.root}: {reason}"
        ) from error
    if archive.stat().st_size and not is_gzip(archive):
        findings.warning(archive, "is not packed with gzip", "pack it with `tar czf`")


def unpack_member(packed: tarfile.TarFile, member: tarfile.TarInfo, findings: Findings) -> None:
    """Make one folder or file, or note why not."""
    name = PurePosixPath(member.name)
    place = findings.root / name.as_posix().lstrip("/")
    if name.is_absolute() or ".." in name.parts:
        findings.error(
            Path(member.name),
            "leads out of the archive",
            "pack with relative names: `tar czf model.tar.gz -C FOLDER .`",
        )
    elif member.issym() or member.islnk():
        findings.error(
            place,
            f"is a link to {member.linkname}, which the platform does not unpack",
            "pack the file itself: `tar czf` with `--dereference --hard-dereference`",
        )
    elif not (member.isfile() or member.isdir()):
        findings.error(place, *NO_FILE)
    else:
        runs = member.isdir() or member.mode & OWNER_RUNS
        safe = tarfile.data_filter(member, str(findings.root))
        safe.mode = PROGRAM_MODE if runs else FILE_MODE
        packed.extract(safe, findings.root, filter="fully_trusted")


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"
