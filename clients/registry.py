"""Finds the client classes and makes one object of each.

They come from three places, and are registered in the same way from all: the files of this folder,
the entry points of installed packages, and the files of other folders. Every file and every folder
of a folder is imported, and each `Client` class defined there is registered under its `modelname`.
One that cannot be used is disabled by itself, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import clients
from clients.base import Client, Environment, Parameter
from clients.errors import BadParameter

BUILT_IN = Path(clients.__file__).parent
ENTRY_POINTS = "triton_dispatcher.clients"

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
        installed: it belongs to an installed package, of which a process sees one state only.

    """

    where: str
    mark: str
    classes: Callable[[], list[type[Client]]]
    installed: bool = False


@dataclass(frozen=True)
class Loaded:
    """What became of one source.

    Args:
        mark: the source's, when it was loaded.
        clients: by model name.
        broken: why others are not among them; by model name where the class got far enough to have
            one, else by the source.

    """

    mark: str
    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a trial said of a source: that of another mark is about another state of it.

    Args:
        mark: the source's, when it was tried.
        names: the clients in it.
        reason: why it is not taken; nothing where it is.

    """

    mark: str
    names: tuple[str, ...] = ()
    reason: str = ""


@dataclass
class Registry:
    """The clients by model name, and why others are not among them.

    Both are replaced as a whole, never changed: who reads one while others are taken up sees the
    old ones or the new ones. `loaded` is what they were made of, by source.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Return where the client of a model comes from."""
        return next(where for where, one in self.loaded.items() if name in one.clients)


def load_clients(
    environment: Environment,
    folders: Iterable[Path] = (),
    verdicts: Mapping[str, Verdict] | None = None,
) -> Registry:
    """Register the built-in clients, then installed ones, then those in `folders`.

    A source that was refused by a trial is left out.
    """
    registry = Registry()
    take(registry, environment, sources(folders), verdicts or {})
    return registry


def take(
    registry: Registry,
    environment: Environment,
    found: Iterable[Source],
    verdicts: Mapping[str, Verdict],
) -> None:
    """Bring a registry up to date; what is under way goes on with the objects that it has.

    A source that has not changed keeps its objects. Into a registry that was filled before, only
    what a trial has accepted is taken; where it was refused, what there was before is kept.
    """
    before, filled = registry.loaded, bool(registry.loaded)
    loaded: dict[str, Loaded] = {}
    for source in found:
        old, verdict = before.get(source.where), verdicts.get(source.where)
        judged = verdict if verdict and verdict.mark == source.mark else None
        if old and (is_same(old, source) or not judged or judged.reason):
            loaded[source.where] = old
        elif judged and judged.reason:
            broken = dict.fromkeys(judged.names or (source.where,), judged.reason)
            loaded[source.where] = Loaded(source.mark, {}, broken)
        elif judged or not filled:
            new = load(source, environment, loaded)
            loaded[source.where] = old if old and new.broken else new
    registry.loaded = loaded
    registry.clients = {n: c for one in loaded.values() for n, c in one.clients.items()}
    registry.broken = {n: why for one in loaded.values() for n, why in one.broken.items()}


def is_same(old: Loaded, source: Source) -> bool:
    """Whether there is nothing to be taken up: what did not work before may work now."""
    return old.mark == source.mark and bool(old.clients) and not old.broken


def load(source: Source, environment: Environment, others: Mapping[str, Loaded]) -> Loaded:
    """Import a source and make its clients; what is wrong with one is noted and logged."""
    loaded = Loaded(source.mark)
    try:
        found = source.classes()
    except (Exception, SystemExit) as error:
        # Whatever a stranger's file does at import disables that file alone.
        log.exception("%s cannot be imported", source.where)
        loaded.broken[source.where] = f"{source.where} cannot be imported: {described(error)}"
        return loaded
    for client in found:
        register(client, environment, source.where, loaded, others)
    for reason in loaded.broken.values():
        log.error("client disabled: %s", reason)
    return loaded


def register(
    client: type[Client],
    environment: Environment,
    source: str,
    loaded: Loaded,
    others: Mapping[str, Loaded],
) -> None:
    """Make the client's one object, or note why there is none."""
    where = f"{client.__name__} in {source}"
    name = getattr(client, "modelname", None)
    taken = {
        n: (w, c) for w, one in {**others, source: loaded}.items() for n, c in one.clients.items()
    }
    if name in taken and type(taken[str(name)][1]) is client:
        return  # the same class under another name in the file
    if fault := declaration_fault(client):
        loaded.broken[str(name or source)] = f"{where}: {fault}"
    elif name in taken:
        loaded.broken[f"{name} ({source})"] = (
            f"{where}: the name {name!r} belongs to the client in {taken[str(name)][0]}; "
            "choose another"
        )
    else:
        try:
            loaded.clients[str(name)] = client(environment)
        except (Exception, SystemExit) as error:
            model = client.model or client.modelname
            if not (environment.model_repository / model).exists():
                # Its labels or its tokenizer lie in a folder that was left out.
                log.info("%s is not served: the model repository has no %s", where, model)
                return
            log.exception("%s cannot be made", where)
            loaded.broken[str(name)] = f"{where}: it cannot be made: {described(error)}"


def declaration_fault(client: type[Client]) -> str:
    """Return what is wrong with a class as its author wrote it; nothing where it is right."""
    if not isinstance(getattr(client, "modelname", None), str) or not client.modelname:
        return 'it has no name; write `modelname = "…"` in the class'
    if missing := sorted(client.__abstractmethods__):
        return f"it lacks the method {missing[0]}(self, payload)"
    if inspect.iscoroutinefunction(client.inference):
        return "its inference is async; write `def inference(self, payload)`: threads wait for it"
    if not isinstance(getattr(client, "example", None), Mapping):
        return "it has no example; write `example = {…}`, a payload that works, in the class"
    try:
        json.dumps(dict(client.example))
    except (TypeError, ValueError) as error:
        return f"its example is not JSON, as a caller would send it: {error}"
    return parameters_fault(client.parameters)


def parameters_fault(declared: object) -> str:
    """Return what is wrong with the parameters that a class declares."""
    if not isinstance(declared, Mapping) or not all(
        isinstance(one, Parameter) for one in declared.values()
    ):
        return "its parameters are no dictionary of clients.base.Parameter"
    for name, parameter in declared.items():
        try:
            parameter.read(name, parameter.default)
        except BadParameter as error:
            return f"the default of its parameter {name!r} is not allowed: {error.hint}"
    return ""


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def sources(folders: Iterable[Path] = ()) -> Iterator[Source]:
    """Yield where clients may be, as things are now, in the order in which names are given away."""
    for path in client_files(BUILT_IN):
        yield file_source(path, built_in=True)
    found = entry_points(group=ENTRY_POINTS)
    yield from map(entry_source, sorted(found, key=lambda point: point.name))
    for folder in folders:
        for path in client_files(folder):
            yield file_source(path, built_in=False)


def client_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, and the folders in it that are packages."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:  # it was there at the start
        return
    for path in paths:
        if path.suffix == ".py" and path.stem != "__init__":
            yield path
        elif (path / "__init__.py").is_file():
            yield path / "__init__.py"


def file_source(path: Path, *, built_in: bool) -> Source:
    files = [path] if path.name != "__init__.py" else sorted(path.parent.rglob("*"))
    mark = " ".join(filter(None, map(file_mark, files)))
    return Source(
        str(path),
        mark,
        lambda: classes_of_built_in(path, mark) if built_in else classes_of_file(path),
    )


def file_mark(path: Path) -> str:
    """Return what differs when a file was written anew; nothing for what Python itself writes."""
    if "__pycache__" in path.parts or path.is_dir():
        return ""
    try:
        found = path.stat()
    except OSError:  # it is being replaced
        return "gone"
    return f"{found.st_ino}.{found.st_mtime_ns}.{found.st_size}"


def entry_source(point: EntryPoint) -> Source:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
    return Source(
        f"the entry point {point.name!r} of {package.partition(' ')[0]}",
        f"{package} {point.value}",
        lambda: classes_of_entry_point(point),
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
