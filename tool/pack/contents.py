"""What is packed of a folder: its files, with links replaced, without what is never read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tarfile import DIRTYPE, TarInfo

from clients.model_files.files import LITTER
from container.trouble import Trouble

# Neither Triton nor a client reads these. Other names with a dot stay: packages in an environment
# keep libraries in folders such as `.libs`.
NEVER_READ = (
    *sorted(LITTER),
    *(".git", ".gitignore", ".gitattributes", ".gitkeep", ".hg", ".svn"),
    *(".cache", ".*_cache", ".ipynb_checkpoints", ".idea", ".vscode"),
    *(".DS_Store", "._*", "*~", ".*.sw[op]", "#*#", ".#*"),
)
COMPILED = (".pyc", ".pyo")
FOLDER_MODE, PROGRAM_MODE, FILE_MODE = 0o755, 0o755, 0o644


@dataclass
class Contents:
    """What is packed, sorted by name, and what is not."""

    # Each with the path of its content on this machine, where links are followed
    entries: list[tuple[TarInfo, Path]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(one.size for one, _ in self.entries)

    @property
    def files(self) -> int:
        return sum(one.isfile() for one, _ in self.entries)


def contents_of(folder: Path, out: Path, exclude: Sequence[str] = ()) -> Contents:
    """Return what is packed of a folder, without the archive `out` and what patterns exclude."""
    found, archive = Contents(), out.resolve()

    def is_left_out(path: Path, name: str) -> bool:
        # An archive beside the models is an earlier one.
        patterns = exclude if "/" in name else (*exclude, "*.tar.gz")
        return path == archive or any(
            fnmatchcase(one, pattern) for one in (path.name, name) for pattern in patterns
        )

    walk(folder.resolve(), "", (), found, is_left_out)
    found.entries.sort(key=lambda entry: entry[0].name.split("/"))
    return found


def walk(
    folder: Path,
    prefix: str,
    above: tuple[Path, ...],
    found: Contents,
    is_left_out: Callable[[Path, str], bool],
) -> None:
    """Add what is in a folder; `above` are the folders that it is in, without links."""
    real = folder.resolve()
    if real in above:
        raise Trouble(
            f"{prefix.rstrip('/')} is a link to a folder that it is in, so that it never ends; "
            "remove the link"
        )
    for path in sorted(folder.iterdir()):
        name = f"{prefix}{path.name}"
        if is_never_read(path) or is_left_out(path, name):
            found.left_out.append(name)
            continue
        mode = kind_of(path, name)
        if path.is_symlink():
            found.replaced.append(name)
        entry = TarInfo(name)  # which belongs to root and has no date
        found.entries.append((entry, path))
        if stat.S_ISDIR(mode.st_mode):
            entry.type, entry.mode = DIRTYPE, FOLDER_MODE
            walk(path, f"{name}/", (*above, real), found, is_left_out)
        else:
            entry.mode = PROGRAM_MODE if mode.st_mode & stat.S_IXUSR else FILE_MODE
            entry.size = mode.st_size


def is_never_read(path: Path) -> bool:
    if path.suffix in COMPILED:  # without its source it is read
        return path.with_suffix(".py").exists()
    return any(fnmatchcase(path.name, pattern) for pattern in NEVER_READ)


def kind_of(path: Path, name: str) -> os.stat_result:
    """Return what a path is, behind links."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Trouble(f"the name {name!r} is not UTF-8; rename it") from error
    try:
        found = path.stat()
    except OSError as error:
        if path.is_symlink():
            why = f"is a link to {path.readlink()}, where there is no file"
            raise Trouble(f"{name} {why}; put the file there, or remove the link") from error
        raise
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        raise Trouble(f"{name} is neither a file nor a folder; remove it")
    return found
