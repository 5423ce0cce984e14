"""Write an archive: the same bytes for the same files, wherever and whenever it is written."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from container.trouble import Trouble
from tool.pack.contents import Contents

LEVEL = 6  # more takes far longer, and weights hardly get smaller


def write_archive(contents: Contents, place: Path) -> int:
    """Write a `model.tar.gz`; return its size in bytes.

    Until it is whole it has another name, and it is removed where that fails.
    """
    part = place.with_name(f".{place.name}.part")
    try:
        with (
            part.open("wb") as file,
            gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for entry, path in contents.entries:
                add(tar, entry, path)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
    return place.stat().st_size


def add(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    """Add a folder, or a file with its content."""
    if entry.isdir():
        tar.addfile(entry)
        return
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == entry.size:
            tar.addfile(entry, file)
        if file.tell() != entry.size or file.read(1):
            raise Trouble(
                f"{entry.name} changed while it was packed; pack again when nobody writes it"
            )
