"""`dispatcher pack FOLDER`: an archive as the hosting service takes it."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tarfile
from pathlib import Path

from container.model_check.findings import Findings
from container.trouble import Trouble
from tool.checks.check import check_all, report
from tool.pack.contents import Contents, contents_of

ARCHIVE = Path("model.tar.gz")
MOST_SHOWN = 10
LEVEL = 6  # more takes far longer, and weights hardly get smaller


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="a model repository, or one model's folder")
    add(
        "--out",
        type=Path,
        default=ARCHIVE,
        metavar="FILE",
        help=f"the archive to write (default: {ARCHIVE})",
    )
    add(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out what has this name or path, such as '*.ipynb' or resnet/samples; may be "
        "repeated",
    )
    add("--no-clients", action="store_true", help="do not import client classes to check them")


def run(options: argparse.Namespace) -> int:
    """Check, then pack; return 1 where the check finds errors, else 0."""
    folder: Path = options.folder
    if not folder.is_dir():
        raise Trouble(f"there is no folder {str(folder)!r}; expected a model repository")
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise Trouble(f"--out is {str(options.out)!r}; expected a file in a folder that exists")
    contents = contents_of(folder, options.out, options.exclude)
    findings = Findings(folder.resolve(), links_replaced=True)
    sys.stdout.write(report(findings, check_all(findings, clients=not options.no_clients)))
    if findings.errors:
        sys.stderr.write("nothing was packed; correct the errors first\n")
        return 1
    sys.stdout.write(describe_contents(contents))
    sys.stdout.flush()
    written = write_archive(contents, options.out)
    sys.stdout.write(f"wrote {options.out}: {written / 2**20:.2f} MB\n")
    return 0


def describe_contents(contents: Contents) -> str:
    lines = [f"packing {contents.files} files, {contents.size / 2**20:.2f} MB"]
    for what, names in (
        ("links replaced by their files", contents.replaced),
        ("left out", contents.left_out),
    ):
        if names:
            more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
            lines.append(f"{what}: {', '.join(names[:MOST_SHOWN])}{more}")
    return "".join(f"{line}\n" for line in lines)


def write_archive(contents: Contents, place: Path) -> int:
    """Write a `model.tar.gz`, the same bytes for the same files; return its size in bytes.

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
