"""Compares a `requirements.txt` beside classes with the packages that are installed.

Nothing is installed here: what the container serves would depend on a registry at every start. The
author adds packages to an image, or puts them beside the class.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from clients.model_files.files import text_of

FILE = "requirements.txt"
CODE = "code"  # the folder of a model archive that the hosting service gives authors
PIP = "/opt/triton-dispatcher/.venv/bin/pip"  # in the image
MOST_NAMED = 5

# What pip takes and names no distribution: options, other lists, and archives by their place.
NOT_COMPARED = re.compile(r"-|[\w+.-]+://|[./~]|[^\s@]+\.(whl|zip|tar\.gz)$")

# Distributions whose modules have another name.
OTHERS = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "faiss": "faiss-cpu",
    "google": "protobuf",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
OWN = frozenset({"backends", "clients", "container", "dispatcher", "tool", "weights"})


@dataclass(frozen=True)
class Lack:
    """A line of a file that the installed packages do not satisfy."""

    file: Path  # the `requirements.txt`
    line: int  # counted from 1; 0 for the whole file
    what: str  # in words
    requirement: str = ""  # what to install, as pip takes it; empty where the line cannot be read

    @property
    def fix(self) -> str:
        """How to add it."""
        if not self.requirement:
            return "write a line such as num2words>=0.5"
        return remedy([self.requirement])


def remedy(requirements: Sequence[str]) -> str:
    """Return how to add packages: to an image, or beside a class."""
    wanted = " ".join(shlex.quote(one) for one in requirements[:MOST_NAMED])
    if len(requirements) > MOST_NAMED:
        wanted = f"-r {FILE}"
    return (
        "build an image of four lines, `FROM triton-dispatcher`, `USER root`, "
        f"`RUN {PIP} install {wanted}` and `USER 1000:0`; "
        "or make the class a package, and put pure Python beside its __init__.py: "
        f"`pip install --target code/clients/NAME {wanted}`"
    )


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


def lacking(folders: Iterable[Path], models: Path | None = None) -> Iterator[str]:
    """Yield a sentence for each file of `requirement_files` that is not satisfied."""
    for file in requirement_files(folders, models):
        if lacks := lacks_of(file):
            wanted = [one.requirement for one in lacks if one.requirement]
            more = f" and {len(lacks) - MOST_NAMED} more" if len(lacks) > MOST_NAMED else ""
            said = ", ".join(one.what for one in lacks[:MOST_NAMED])
            yield f"{file}: {said}{more}: {remedy(wanted) if wanted else lacks[0].fix}"


def lacks_of(file: Path) -> list[Lack]:
    """Return the lines of a file that are not satisfied."""
    places = [str(path) for path in (file.parent, *places_beside(file.parent))]
    try:
        lines = text_of(file).split("\n")
    except (OSError, ValueError) as error:
        return [Lack(file, 0, f"it cannot be read ({type(error).__name__})")]
    found: list[Lack] = []
    for number, whole in enumerate(lines, 1):
        # Options may follow, also in the next line, after a backslash.
        line = re.sub(r"((^|\s)#.*|\s--\w.*|\\)$", "", whole).strip()
        if not line or NOT_COMPARED.match(line):
            continue
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            found.append(Lack(file, number, f"`{line[:60]}` is no requirement"))
            continue
        applies = wanted.marker is None or wanted.marker.evaluate()
        if applies and (what := lack_of(wanted, places)):
            wanted.marker = None
            found.append(Lack(file, number, what, str(wanted)))
    return found


def places_beside(folder: Path) -> list[Path]:
    """Return folders in which packages may have been put beside classes."""
    return [path for depth in ("*", "clients/*") for path in folder.glob(depth) if path.is_dir()]


def lack_of(wanted: Requirement, places: Sequence[str]) -> str:
    """Return what is missing of a requirement, in words; empty where it is there."""
    name, there = f"{wanted.name}{wanted.specifier}", find_installed(wanted.name, places)
    if there is None:
        return f"{name} is not installed"
    if not wanted.specifier.contains(there.version, prereleases=True):
        return f"{name} is wanted, and {wanted.name} {there.version} is installed"
    return ""


def find_installed(name: str, places: Sequence[str]) -> importlib.metadata.Distribution | None:
    """Return an installed distribution."""
    path = [*places, *sys.path]
    found = importlib.metadata.distributions(name=canonicalize_name(name), path=path)
    return next(iter(found), None)


def import_remedy(error: BaseException, file: Path | None = None) -> str:
    """Return how to add the distribution of a module that was not found; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    module = error.name.partition(".")[0]
    if module in OWN or module in sys.modules or importlib.util.find_spec(module) is not None:
        return ""  # a module of this project, or missing inside of a package that is there
    names = {canonicalize_name(module), canonicalize_name(OTHERS.get(module, module))}
    folder = file and (file.parent.parent if file.name == "__init__.py" else file.parent)
    for listed in requirement_files([folder]) if folder else ():
        for one in lacks_of(listed):
            if one.requirement and canonicalize_name(Requirement(one.requirement).name) in names:
                return f"{one.requirement}, of {listed.name}, is not installed: {one.fix}"
    if module in OTHERS:
        return f"{OTHERS[module]} is not installed: {remedy([OTHERS[module]])}"
    own = f"if {module} is a file of your own, put {module}.py beside the class"
    return f"{own}; if it is a package, {remedy([module.replace('_', '-')])}"
