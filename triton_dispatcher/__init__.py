"""The package of the wheel: it makes `clients.base` and its neighbours importable.

In a checkout and in the image `clients`, `container`, `dispatcher` and `tool` are folders on the
search path. In other people's environments they are in this package, and take no name from anyone:
`import clients` finds another package of that name where there is one, and else this project's,
which is also `triton_dispatcher.clients` in any case. Under both names a module is the same object.

`triton_dispatcher.pth` imports this file whenever Python starts; so it imports nothing.
"""

from __future__ import annotations

import sys

PARTS = frozenset({"backends", "clients", "container", "dispatcher", "tool", "weights"})


class First:
    """Finds a module by its name in this package, and what is in a part by both names."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:  # noqa: ARG004
        """Return how a module of this project is loaded; `None` for any other."""
        first, _, rest = name.partition(".")
        if rest and (first in PARTS or (first == __name__ and rest.partition(".")[0] in PARTS)):
            from triton_dispatcher import imports  # noqa: PLC0415  see above

            return imports.in_package(rest) if first == __name__ else imports.in_part(name)
        return None


class Last:
    """Finds a part by its bare name, where nobody else has that name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:  # noqa: ARG004
        """Return how a part is loaded; `None` for all else."""
        if name in PARTS:
            from triton_dispatcher import imports  # noqa: PLC0415  see above

            return imports.alias(name, f"{__name__}.{name}")
        return None


def __getattr__(name: str) -> str:
    """Return `__version__`, which is the version of the contract with authors as well."""
    if name == "__version__":
        from importlib import import_module  # noqa: PLC0415  see above

        return str(import_module(f"{__name__}.dispatcher.version").VERSION)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.meta_path.insert(0, First)  # type: ignore[arg-type]
sys.meta_path.append(Last)  # type: ignore[arg-type]
