"""Compares a `requirements.txt` beside classes with the packages that are installed.

Nothing is installed here: what the container serves would depend on a registry at every start. The
author adds packages to an image, or to a folder of PYTHONPATH.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from clients.model_files.files import text_of

FILE = "requirements.txt"
CODE = "code"  # the folder of a model archive that the hosting service gives authors

# What pip takes and names no distribution: options, other lists, and archives by their place.
NOT_COMPARED = re.compile(r"-|[\w+.-]+://|[./~]|[^\s@]+\.(whl|zip|tar\.gz)$")


def requirement_files(folders: Iterable[Path], models: Path | None = None) -> list[Path]:
    """Return the files for folders of classes: in them, in their packages, and in `code` above.

    The one in the folder `code` of a model repository is found even if no classes are there.
    """
    found: dict[Path, None] = {}
    for folder in (*folders, *([models / CODE / "clients"] if models else [])):
        above = [folder.parent / FILE] if folder.parent.name == CODE else []
        for path in (*above, folder / FILE, *sorted(folder.glob(f"*/{FILE}"))):
            if path.is_file():
                found[path] = None
    return list(found)


def lacks_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield number and lack of each line of a file that is not satisfied."""
    beside = [one for depth in ("*", "clients/*") for one in file.parent.glob(depth)]
    places = [*map(str, (file.parent, *beside)), *sys.path]
    try:
        lines = text_of(file).split("\n")
    except (OSError, ValueError) as error:
        yield 0, f"it cannot be read ({type(error).__name__})"
        return
    for number, whole in enumerate(lines, 1):
        # Options may follow, also in the next line, after a backslash.
        line = re.sub(r"((^|\s)#.*|\s--\w.*|\\)$", "", whole).strip()
        if not line or NOT_COMPARED.match(line):
            continue
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            yield number, f"`{line[:60]}` is no requirement such as num2words>=0.5"
            continue
        if wanted.marker and not wanted.marker.evaluate():
            continue
        name = f"{wanted.name}{wanted.specifier}"
        found = importlib.metadata.distributions(name=canonicalize_name(wanted.name), path=places)
        if (there := next(iter(found), None)) is None:
            yield number, f"{name} is not installed"
        elif not wanted.specifier.contains(there.version, prereleases=True):
            yield number, f"{name} is wanted, and {wanted.name} {there.version} is installed"
