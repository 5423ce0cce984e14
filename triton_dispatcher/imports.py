"""How a module of this project is loaded, by either of its names."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

OWN = f"{__package__}."

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "clients" / "base.py").exists() else HERE.parent
"""The folder with the parts: this one in the wheel, the project's in a checkout."""


def in_package(name: str) -> ModuleSpec | None:
    """Return how `triton_dispatcher.NAME` is loaded; `None` where Python finds it itself."""
    return alias(OWN + name, name) if is_top_level(name.partition(".")[0]) else None


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
    if spec is None:
        return None
    import_module(target)  # first: it may import itself, or what imports it, by the other name
    return ModuleSpec(name, Alias(target), origin=spec.origin)


class Alias(Loader):
    """Puts a module of another name in the place of a new one."""

    def __init__(self, target: str) -> None:
        self.target = target

    def exec_module(self, module: ModuleType) -> None:
        """Put it there."""
        sys.modules[module.__name__] = import_module(self.target)
