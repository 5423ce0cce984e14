"""How a module of this project is loaded, by either of its names."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

OWN = f"{__package__}."
PARTS: frozenset[str] = sys.modules[__package__].PARTS  # this package is loaded by now

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "clients").is_dir() else HERE.parent
"""The folder with the parts: this one in the wheel, the project's in a checkout."""


def in_package(name: str) -> ModuleSpec | None:
    """Return how `triton_dispatcher.NAME` is loaded."""
    part, _, rest = name.partition(".")
    if is_top_level(part):
        return alias(OWN + name, name)
    parent = sys.modules[OWN + name.rpartition(".")[0]].__path__ if rest else [str(ROOT)]
    spec = PathFinder.find_spec(OWN + name, parent)
    if spec and spec.origin and type(spec.loader) is SourceFileLoader:
        spec.loader = OwnLoader(spec.name, spec.origin)
    return spec


def in_part(name: str) -> ModuleSpec | None:
    """Return how `clients.NAME` is loaded, where `clients` is a second name of this package's."""
    part = name.partition(".")[0]
    second = getattr(sys.modules.get(part), "__name__", part) == OWN + part
    return alias(name, OWN + name) if second else None


def is_top_level(part: str) -> bool:
    """Whether Python finds this project's folder by its bare name, as in a checkout."""
    loaded = sys.modules.get(OWN + part) or sys.modules.get(part)
    spec = loaded.__spec__ if loaded else PathFinder.find_spec(part)
    if not spec or spec.name != part or isinstance(spec.loader, Alias):
        return False
    return Path(spec.origin or "").resolve() == ROOT / part / "__init__.py"


def alias(name: str, target: str) -> ModuleSpec | None:
    """Return how a second name of a module is loaded; `None` where there is no such module."""
    try:
        spec = find_spec(target)
    except ModuleNotFoundError:
        return None
    return ModuleSpec(name, Alias(target), origin=spec.origin) if spec else None


class Alias(Loader):
    """Puts a module of another name in the place of a new one."""

    def __init__(self, target: str) -> None:
        self.target = target

    def exec_module(self, module: ModuleType) -> None:
        """Put it there."""
        sys.modules[module.__name__] = import_module(self.target)


class OwnLoader(SourceFileLoader):
    """Loads a module of this package, whose `import clients` means this package's."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": own_import}
        super().exec_module(module)


def own_import(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002  its name in Python
    locals: Mapping[str, Any] | None = None,  # noqa: A002  the same
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import a module for a module of this package."""
    first = name.partition(".")[0]
    if level or first not in PARTS:
        return __import__(name, globals, locals, fromlist or (), level)
    whole = __import__(OWN + name, globals, locals, fromlist or ("__name__",))
    return whole if fromlist else sys.modules[OWN + first]
