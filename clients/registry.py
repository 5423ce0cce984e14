"""Finds the client classes and makes one object of each.

The built-in ones are found exactly as a stranger's are: every file and every folder of a folder is
imported, and each `Client` class defined there is registered under its `modelname`. One that
cannot be used is disabled by itself, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import clients
from clients.base import Client, Environment, Parameter

BUILT_IN = Path(clients.__file__).parent

log = logging.getLogger(__name__)


@dataclass
class Registry:
    """The clients by model name, and why others are not among them.

    `broken` is keyed by model name where the class got far enough to have one, else by file.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


def load_clients(environment: Environment, folders: Iterable[Path] = ()) -> Registry:
    """Register the built-in clients, then those in `folders`, in this order."""
    registry = Registry()
    for folder in (BUILT_IN, *folders):
        for path in client_files(folder):
            try:
                found = client_classes(import_file(path))
            except (Exception, SystemExit) as error:
                # Whatever a stranger's file does at import disables that file alone.
                log.exception("%s cannot be imported", path)
                registry.broken[str(path)] = f"{path} cannot be imported: {described(error)}"
                continue
            for client in found:
                register(registry, client, environment, path)
            if not found and folder != BUILT_IN:
                log.warning(
                    "%s has no client: no class in it is built on clients.base.Client", path
                )
    for reason in registry.broken.values():
        log.error("client disabled: %s", reason)
    return registry


def register(
    registry: Registry, client: type[Client], environment: Environment, path: Path
) -> None:
    """Make the client's one object, or note why there is none."""
    where = f"{client.__name__} in {path}"
    name = getattr(client, "modelname", None)
    if name in registry.clients and type(registry.clients[str(name)]) is client:
        return  # the same class under another name in the file
    if fault := declaration_fault(client):
        registry.broken[str(name or path)] = f"{where}: {fault}"
    elif name in registry.clients:
        other = inspect.getfile(type(registry.clients[name]))
        registry.broken[f"{name} ({path})"] = (
            f"{where}: the name {name!r} belongs to the client in {other}; choose another"
        )
    else:
        try:
            registry.clients[str(name)] = client(environment)
        except (Exception, SystemExit) as error:
            model = client.model or client.modelname
            if not (environment.model_repository / model).exists():
                # Its labels or its tokenizer lie in a folder that was left out.
                log.info("%s is not served: the model repository has no %s", where, model)
                return
            log.exception("%s cannot be made", where)
            registry.broken[str(name)] = f"{where}: it cannot be made: {described(error)}"


def declaration_fault(client: type[Client]) -> str:
    """Return what is wrong with a class as its author wrote it; nothing where it is right."""
    if not isinstance(getattr(client, "modelname", None), str) or not client.modelname:
        return 'it has no name; write `modelname = "…"` in the class'
    if missing := sorted(client.__abstractmethods__):
        return f"it lacks the method {missing[0]}(self, payload)"
    if not isinstance(getattr(client, "example", None), Mapping):
        return "it has no example; write `example = {…}`, a payload that works, in the class"
    declared: object = client.parameters
    if not isinstance(declared, Mapping) or not all(
        isinstance(one, Parameter) for one in declared.values()
    ):
        return "its parameters are no dictionary of clients.base.Parameter"
    return ""


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def client_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, and the folders in it that are packages."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield path
        elif (path / "__init__.py").is_file():
            yield path / "__init__.py"


def import_file(path: Path) -> ModuleType:
    """Import a client's file; those of other folders under a name that cannot hide a module."""
    package = path.name == "__init__.py"
    stem = path.parent.name if package else path.stem
    if BUILT_IN in (path.parent, path.parent.parent):
        return importlib.import_module(f"{clients.__name__}.{stem}")
    name = f"client_of_{abs(hash(path))}_{stem}"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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
