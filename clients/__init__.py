"""What the author of a client class imports, and what serves the classes."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "clients.pictures": "clients.images.pictures",
    "clients.resizing": "clients.images.resizing",
}
"""Modules that the documentation has named in the past, and their places now."""


class MovedModules(MetaPathFinder, Loader):
    """Imports a module by the name that it had before it was moved."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  as in the base class
        target: ModuleType | None = None,  # noqa: ARG002  likewise
    ) -> ModuleSpec | None:
        """Return how a moved module is loaded; `None` for any other."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in its place."""
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} was moved: import {new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


sys.meta_path.append(MovedModules())  # last: a file of this name that was added comes first
