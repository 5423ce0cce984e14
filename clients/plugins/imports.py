"""Lets a class import files beside its own by bare names: `from base import Base`.

Older classes do, because they were started in their own folder. Two authors may both have a file of
the same name beside theirs: the files of each author are in a package of their own. Modules that
Python finds without this, such as installed packages, come first.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "client_"  # of the names of authors' modules
IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w., \t]+)", re.MULTILINE)
FIRST = re.compile(r"(?<![\w.])\w+")  # not `base` of `clients.base`

count = itertools.count(1)


def import_file(path: Path) -> ModuleType:
    """Import an author's file, or a package by its `__init__.py`.

    Each call imports it again, under a name that cannot hide another module.
    """
    importlib.invalidate_caches()  # files beside it may be new
    is_package = path.name == "__init__.py"
    folder = path.parent.parent if is_package else path.parent
    around = ModuleSpec(f"{PREFIX}{next(count)}", None, is_package=True)
    around.submodule_search_locations = [str(folder)]
    sys.modules[around.name] = importlib.util.module_from_spec(around)
    name = f"{around.name}_{path.parent.name if is_package else path.stem}"
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        loader=Loader(name, str(path)),
        submodule_search_locations=[str(path.parent)] if is_package else None,
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Loader(SourceFileLoader):
    """Runs an author's file with an `import` that also looks beside the file."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_of}
        super().exec_module(module)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no bytecode: Python's cache misses a second edit in one second."""


class Finder(MetaPathFinder):
    """Loads the modules of an author's packages in the same way."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how such a module is loaded; `None` for any other."""
        if path is None or not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and type(spec.loader) is SourceFileLoader:
            spec.loader = Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, Finder())


def import_of(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002  its name in Python
    locals: Mapping[str, Any] | None = None,  # noqa: A002  the same
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import a module for an author's file: from beside it, if it is nowhere else."""
    first = name.partition(".")[0]
    if level == 0 and globals and not is_found(first):
        for package in packages(str(globals["__name__"])):
            if is_found(f"{package}.{first}"):
                whole = importlib.import_module(f"{package}.{name}")
                if fromlist:  # names in it may be submodules
                    return __import__(whole.__name__, globals, locals, fromlist, 0)
                return sys.modules[f"{package}.{first}"]
    return __import__(name, globals, locals, fromlist or (), level)


def packages(module: str) -> Iterator[str]:
    """Yield the author's packages that contain a module, the innermost first."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        package = ".".join(parts[:end])
        if hasattr(sys.modules.get(package), "__path__"):
            yield package
    yield "_".join(parts[0].split("_")[:2])


def is_found(name: str) -> bool:
    """Whether there is a module of this name; a folder without `__init__.py` is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that a program has made
        return True
    return spec is not None and spec.origin is not None


def imports_beside(path: Path) -> set[Path]:
    """Return the files beside an author's file that it imports by bare names, and what they do."""
    is_package = path.name == "__init__.py"
    folder = path.parent.parent if is_package else path.parent
    todo = list(path.parent.rglob("*.py")) if is_package else [path]
    found: set[Path] = set()
    while todo:
        try:
            text = todo.pop().read_text(encoding="utf-8", errors="replace")
        except OSError:  # importing it reports the mistake
            continue
        for name in set(FIRST.findall(" ".join(IMPORTS.findall(text)))):
            for one in (folder / f"{name}.py", *(folder / name).rglob("*.py")):
                if one.is_file() and one not in found and one != path:
                    found.add(one)
                    todo.append(one)
    return found
