"""Finds the client classes.

They come from three places: the `dispatch.toml` of each model, the entry points of installed
packages, and the files of folders, `clients/` among them, of which every Python file and every
package is imported, and each `Client` class defined there counts.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from clients.base import Client
from clients.errors import ClientDisabled
from clients.families.base.dispatch_toml import FILE, is_inside, read_table
from clients.families.base.family import client_class
from clients.model_files.files import Mark, is_file, is_litter, mark_files
from clients.plugins import imports as beside

OWN_FOLDER = Path(__file__).parent.parent
LIBRARY = {
    *("annotations.py", "asking.py", "base.py", "errors.py", "parameters.py", "request.py"),
    *("testing.py", "families", "images", "model_files", "plugins", "sound", "tensors", "text"),
    "triton",
}
"""The modules and packages of `clients/` that belong to this project, and hold no clients."""

ENTRY_POINTS = "triton_dispatcher.clients"
DECLARED = re.compile(r"""^[ \t]+modelname\b[^=\n]*=\s*["']([^"'\n]+)""", re.MULTILINE)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Something that may hold client classes."""

    where: str  # its path, or the entry point in words
    mark: Mark  # the state of its files when it was found
    # Imports it; returns the classes, or raises whatever the import raises
    classes: Callable[[], list[type[Client]]]
    foreign: bool = True  # it has code of its own, and is tried in a process of its own first
    # It belongs to an installed package, of which a process sees one state only
    installed: bool = False
    model: str = ""  # the model that it serves, where that is known before the import


def sources(repository: Path, folders: Iterable[Path] = ()) -> Iterator[Source]:
    """Yield all sources; of two clients with one name the first counts."""
    for path in sorted(repository.glob(f"*/{FILE}")):
        yield model_source(path)
    found = entry_points(group=ENTRY_POINTS)
    yield from map(entry_source, sorted(found, key=lambda point: (point.name, point.value)))
    for folder in (OWN_FOLDER, *folders):
        for path in client_files(folder):
            if not (folder == OWN_FOLDER and path.relative_to(folder).parts[0] in LIBRARY):
                yield file_source(path)


def names_in(source: Source) -> list[str]:
    """Return the names of the models that a source serves, without importing it.

    The source's own name, if none can be seen in its text.
    """
    if source.model:
        return [source.model]
    try:
        text = Path(source.where).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # an entry point, or a file that cannot be read
        text = ""
    return DECLARED.findall(text) or [source.where]


def client_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, and the folders in it that are packages."""
    for path in list_folder(folder):
        if is_litter(path):  # such as `._double.py` of macOS, which is no Python
            continue
        if path.suffix == ".py" and path.stem != "__init__":
            yield path
        elif is_file(path / "__init__.py"):
            yield path / "__init__.py"


def list_folder(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing of what is none, or was removed."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):  # the name can be no path
        return []


def file_source(path: Path) -> Source:
    files = [path] if path.name != "__init__.py" else path.parent.rglob("*")
    mark = mark_files([*files, *beside.imports_beside(path)])
    return Source(str(path), mark, lambda: classes_of_file(path))


def model_source(path: Path) -> Source:
    """Return the source for a model with a `dispatch.toml`."""
    mark, model = mark_files(model_files(path)), path.parent.name
    return Source(str(path), mark, lambda: [client_class(path)], foreign=False, model=model)


def model_files(path: Path) -> Iterator[Path]:
    """Yield what is beside a `dispatch.toml`, but for versions, or named in it, one folder deep.

    Not all below: an environment may be there, or a link to any folder, itself included.
    """
    places = [one for one in list_folder(path.parent) if not one.name.isdigit()]
    with suppress(ClientDisabled):  # loading it reports the mistake
        places += [path.parent / one for one in read_table(path).values() if is_inside(one)]
    for place in places:
        yield place
        yield from list_folder(place)


def entry_source(point: EntryPoint) -> Source:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    where = f"the entry point {point.name!r} of {package.partition(' ')[0]}"
    mark = {where: f"{package} {point.value}"}
    return Source(where, mark, lambda: classes_of_entry_point(point), installed=True)


def classes_of_entry_point(point: EntryPoint) -> list[type[Client]]:
    """Return the class that an entry point names, or the classes of its module."""
    importlib.invalidate_caches()  # the package may have been installed since the start
    found = point.load()
    if isinstance(found, ModuleType):
        return client_classes(found)
    if isinstance(found, type) and issubclass(found, Client):
        return [found]
    raise TypeError(
        f"{point.value} is {found!r}; expected a module, or a class built on clients.base.Client"
    )


def classes_of_file(path: Path) -> list[type[Client]]:
    """Return the clients in a file, or in a package by its `__init__.py`."""
    module = beside.import_file(path)
    if not (found := client_classes(module)):
        log.warning("%s has no client: no class in it is built on clients.base.Client", path)
    return found


def client_classes(module: ModuleType) -> list[type[Client]]:
    """Return the client classes that a module defines, in their order.

    Classes whose `modelname` is the empty text are bases for others, and left out.
    """
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Client)
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
        and value is not Client
        and getattr(value, "modelname", None) != ""
    ]
