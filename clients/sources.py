"""Finds the client classes.

They come from four places: the files of this folder, the `dispatch.toml` of each model, the entry
points of installed packages, and the files of other folders. Every file and every folder of a
folder is imported, and each `Client` class defined there counts.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import clients
from clients.base import Client
from clients.dispatch_toml import FILE, is_inside, read_table
from clients.errors import ClientDisabled
from clients.family import client_class

BUILT_IN = Path(clients.__file__).parent
ENTRY_POINTS = "triton_dispatcher.clients"
DECLARED = re.compile(r"""^[ \t]+modelname\b[^=\n]*=\s*["']([^"'\n]+)""", re.MULTILINE)

log = logging.getLogger(__name__)
count = itertools.count(1)
imported: dict[str, str] = {}  # the marks that the files of this folder had, by module


@dataclass(frozen=True)
class Source:
    """Something that may hold client classes.

    Args:
        where: its path, or the entry point in words.
        mark: another one when it was changed.
        classes: imports it; returns the classes, or raises whatever the import raises.
        foreign: it is code that is no part of this project.
        installed: it belongs to an installed package, of which a process sees one state only.
        model: the model that it is about, where that is known before.

    """

    where: str
    mark: str
    classes: Callable[[], list[type[Client]]]
    foreign: bool = False
    installed: bool = False
    model: str = ""


def sources(repository: Path, folders: Iterable[Path] = ()) -> Iterator[Source]:
    """Yield where clients may be, as things are now, in the order in which names are given away."""
    for path in client_files(BUILT_IN):
        yield file_source(path, built_in=True)
    for path in sorted(repository.glob(f"*/{FILE}")):
        yield model_source(path)
    found = entry_points(group=ENTRY_POINTS)
    yield from map(entry_source, sorted(found, key=lambda point: point.name))
    for folder in folders:
        for path in client_files(folder):
            yield file_source(path, built_in=False)


def names_in(source: Source) -> list[str]:
    """Return the models that a source is about, though it cannot be imported.

    Without a model in it that can be seen, the source itself.
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
    try:
        paths = sorted(folder.iterdir())
    except OSError:  # it was there at the start
        return
    for path in paths:
        if path.suffix == ".py" and path.stem != "__init__":
            yield path
        elif os.path.isfile(path / "__init__.py"):  # noqa: PTH113  Path's raises where it may not look
            yield path / "__init__.py"


def file_source(path: Path, *, built_in: bool) -> Source:
    files = [path] if path.name != "__init__.py" else sorted(path.parent.rglob("*"))
    mark = " ".join(filter(None, map(file_mark, files)))
    return Source(
        str(path),
        mark,
        lambda: classes_of_built_in(path, mark) if built_in else classes_of_file(path),
        foreign=not built_in,
    )


def model_source(path: Path) -> Source:
    """Return the source for a model with a `dispatch.toml`; what it names lies beside it."""
    try:
        beside = [one for one in path.parent.iterdir() if not one.name.isdigit()]
        inside = [one for folder in beside if folder.is_dir() for one in folder.iterdir()]
    except OSError:  # it is being unloaded
        beside, inside = [path], []
    with suppress(OSError, ValueError):  # no text that can be a path; or as above
        inside += named(path)
    files = sorted({*beside, *inside})
    mark = " ".join(filter(None, map(file_mark, files)))
    return Source(str(path), mark, lambda: [client_class(path)], model=path.parent.name)


def named(path: Path) -> Iterator[Path]:
    """Yield the files that a `dispatch.toml` names, wherever in the model's folder they lie."""
    try:
        values = read_table(path).values()
    except ClientDisabled:  # it says so when it is loaded
        return
    for place in (path.parent / value for value in values if is_inside(value)):
        yield from place.rglob("*") if place.is_dir() else [place]


def file_mark(path: Path) -> str:
    """Return what differs when a file was written anew; nothing for what Python itself writes."""
    try:
        if "__pycache__" in path.parts or path.is_dir():
            return ""
        found = path.stat()
    except (OSError, ValueError):  # it is being replaced, or can be no path
        return "gone"
    return f"{found.st_ino}.{found.st_mtime_ns}.{found.st_size}"


def entry_source(point: EntryPoint) -> Source:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    return Source(
        f"the entry point {point.name!r} of {package.partition(' ')[0]}",
        f"{package} {point.value}",
        lambda: classes_of_entry_point(point),
        foreign=True,
        installed=True,
    )


def classes_of_entry_point(point: EntryPoint) -> list[type[Client]]:
    """Return the class that an entry point names, or those in the module that it names."""
    importlib.invalidate_caches()  # the package may have been installed since the start
    found = point.load()
    if isinstance(found, ModuleType):
        return client_classes(found)
    if isinstance(found, type) and issubclass(found, Client):
        return [found]
    raise TypeError(
        f"{point.value} is {found!r}; expected a module, or a class built on clients.base.Client"
    )


def classes_of_built_in(path: Path, mark: str) -> list[type[Client]]:
    """Return the clients in a file of this folder; what they are built on is imported once only."""
    name = f"{clients.__name__}.{stem(path)}"
    module = importlib.import_module(name)
    if imported.setdefault(name, mark) != mark and client_classes(module):
        del sys.modules[name]
        imported[name] = mark
        with nothing_written():
            module = importlib.import_module(name)
    return client_classes(module)


def classes_of_file(path: Path) -> list[type[Client]]:
    """Return the clients in a file of another folder.

    It is imported anew each time, under a name that cannot hide a module.
    """
    name = f"client_{next(count)}_{stem(path)}"
    package = path.name == "__init__.py"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with nothing_written():
        spec.loader.exec_module(module)
    if not (found := client_classes(module)):
        log.warning("%s has no client: no class in it is built on clients.base.Client", path)
    return found


def stem(path: Path) -> str:
    return path.parent.name if path.name == "__init__.py" else path.stem


@contextmanager
def nothing_written() -> Iterator[None]:
    """Keep Python from caching what it compiles: its cache does not tell two edits in a second."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def client_classes(module: ModuleType) -> list[type[Client]]:
    """Return the client classes that are defined in a module, in the order they stand there.

    One whose `modelname` is the empty text is meant for others to build on.
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
