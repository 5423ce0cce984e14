"""Imports the files of authors, each under a name that cannot hide another module.

They import this project's modules as its own files do: in a wheel beside another `clients`, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "client_"  # of the names of authors' modules

count = itertools.count(1)


def import_file(path: Path) -> ModuleType:
    """Import an author's file, or a package by its `__init__.py`; each call does it again."""
    importlib.invalidate_caches()  # files beside it may be new
    is_package = path.name == "__init__.py"
    name = f"{PREFIX}{next(count)}_{path.parent.name if is_package else path.stem}"
    inside = [str(path.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(
        name, path, loader=Loader(name, str(path)), submodule_search_locations=inside
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Loader(SourceFileLoader):
    """Runs an author's file with this file's `import`."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = __builtins__
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
