"""Lets a class import what lies beside its file by its bare name: `from base import Base`.

So do classes that were written before, which were started in their own folder. Files of one name
may lie beside those of several authors: each has its own, in a package that nobody else sees. What
Python finds by itself comes first, such as an installed package.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "client_"  # of the modules of authors

count = itertools.count(1)


def imported(path: Path) -> ModuleType:
    """Import an author's file, or his package by its `__init__.py`.

    It is imported again each time, under a name that cannot hide a module.
    """
    importlib.invalidate_caches()  # what lies beside it may just have come
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
    """Runs an author's file with an `import` that looks beside it as well."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": import_of}
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Has the modules in an author's packages run in the same way."""

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
    """Do what `import` does in an author's file: what is nowhere else is looked for beside it."""
    first = name.partition(".")[0]
    if level == 0 and globals and not is_found(first):
        for package in packages(str(globals["__name__"])):
            if is_found(f"{package}.{first}"):
                whole = importlib.import_module(f"{package}.{name}")
                if fromlist:  # names in it may be modules too
                    return __import__(whole.__name__, globals, locals, fromlist, 0)
                return sys.modules[f"{package}.{first}"]
    return __import__(name, globals, locals, fromlist or (), level)


def packages(module: str) -> Iterator[str]:
    """Yield the packages of an author that a module lies in, the innermost first."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        package = ".".join(parts[:end])
        if hasattr(sys.modules.get(package), "__path__"):
            yield package
    yield "_".join(parts[0].split("_")[:2])


def is_found(name: str) -> bool:
    """Whether there is a module of this name; a mere folder is none."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # one that was made by hand
        return True
    return spec is not None and spec.origin is not None


def imports_beside(path: Path) -> set[Path]:
    """Return the files beside an author's file, or package, that it imports by their bare names.

    Those count as well that are imported by these.
    """
    is_package = path.name == "__init__.py"
    folder = path.parent.parent if is_package else path.parent
    todo = list(path.parent.rglob("*.py")) if is_package else [path]
    found: set[Path] = set()
    while todo:
        for name in bare_names(file := todo.pop(), file_state(file)):
            for one in (folder / f"{name}.py", *(folder / name).rglob("*.py")):
                if one.is_file() and one not in found and one != path:
                    found.add(one)
                    todo.append(one)
    return found


def file_state(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1024)
def bare_names(path: Path, state: tuple[int, int]) -> frozenset[str]:  # noqa: ARG001  a key
    """Return the first names of the modules that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()  # its import says what is wrong
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return frozenset(name.partition(".")[0] for name in names)
