"""Imports an author's file, which may import files beside its own by bare names.

Older classes do, as in `from base import Base`, because they were started in their own folder. The
folders are at the end of `sys.path`, so that what Python finds without them comes first.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PREFIX = "client_"  # of the names of authors' files, which cannot hide another module
IMPORTS = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w., \t]+)", re.MULTILINE)
FIRST = re.compile(r"(?<![\w.])\w+")  # not `base` of `clients.base`

count = itertools.count(1)
folders: list[str] = []
"""Those of authors in `sys.path`, the last one's first."""


def imported(path: Path) -> ModuleType:
    """Import an author's file, or a package by its `__init__.py`.

    Each call imports it again, with what lies beside it: the files may have changed, and another
    author may have files of the same names.
    """
    importlib.invalidate_caches()
    is_package = path.name == "__init__.py"
    name = f"{PREFIX}{next(count)}_{path.parent.name if is_package else path.stem}"
    inside = [str(path.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with alone([path.parent, path.parent.parent] if is_package else [path.parent]):
        spec.loader.exec_module(module)
    return module


@contextmanager
def alone(own: list[Path]) -> Iterator[None]:
    """Hide what lies beside other authors' files; a later import, in a function, finds it again."""
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if not name.startswith(PREFIX) and is_authors(getattr(module, "__file__", None))
    }
    for name in hidden:
        del sys.modules[name]
    places = [str(folder) for folder in own]
    others = [one for one in folders if one not in places]
    sys.path[:] = [one for one in sys.path if one not in folders] + places
    folders[:] = [*places, *others]
    try:
        yield
    finally:
        sys.path += others
        taken = {name.partition(".")[0] for name in sys.modules}
        back = {name: one for name, one in hidden.items() if name.partition(".")[0] not in taken}
        sys.modules.update(back)


def is_authors(file: str | None) -> bool:
    """Whether a file lies in an author's folder."""
    return file is not None and any(Path(file).is_relative_to(one) for one in folders)


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
