"""Finds the client classes and makes one object of each.

They come from four places, and are registered in the same way from all: the files of this folder,
the `dispatch.toml` of each model, the entry points of installed packages, and the files of other
folders. Every file and every folder of a folder is imported, and each `Client` class defined there
is registered under its `modelname`.
One that cannot be used is disabled by itself, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import clients
from clients.base import Client, Environment, Parameter
from clients.dispatch_toml import FILE
from clients.errors import BadParameter, ClientDisabled
from clients.family import client_class

BUILT_IN = Path(clients.__file__).parent
ENTRY_POINTS = "triton_dispatcher.clients"
DECLARED = re.compile(r"""^[ \t]+modelname\b[^=\n]*=\s*["']([^"'\n]+)""", re.MULTILINE)

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
        foreign: it is code that is no part of this project.
        installed: it belongs to an installed package, of which a process sees one state only.
        model: the model that it is about, where that is known before.

    """

    where: str
    mark: str
    classes: Callable[[], list[type[Client]]]
    foreign: bool = False
    installed: bool = False
    model: str = ""


@dataclass(frozen=True)
class Loaded:
    """What became of one source.

    Args:
        mark: the source's, when it was loaded.
        clients: by model name.
        broken: why others are not among them; by model name where one is known, else by the
            source.
        absent: model folders that are not there, without which some clients cannot be made.

    """

    mark: str
    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    absent: dict[str, Path] = field(default_factory=dict)

    def is_all(self, source: Source) -> bool:
        """Whether loading the source again would change nothing."""
        come = any(folder.exists() for folder in self.absent.values())
        return self.mark == source.mark and not self.broken and not come


@dataclass(frozen=True)
class Verdict:
    """What a trial said of a source in the state that `mark` stands for.

    Args:
        mark: the source's, when it was tried.
        good: the clients in it that work.
        bad: why others do not; by model name where one is known, else by the source.

    """

    mark: str
    good: tuple[str, ...] = ()
    bad: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Verdict:
        """Return what was written as JSON, which has lists alone."""
        return cls(fields["mark"], tuple(fields["good"]), fields["bad"])

    @property
    def reason(self) -> str:
        """Why not all of it works; nothing where it does."""
        return "; ".join(dict.fromkeys(self.bad.values()))


@dataclass
class Registry:
    """The clients by model name, and why others are not among them.

    All are replaced as a whole, never changed: who looks while others are taken up sees the old
    ones or the new ones. `loaded` is what they were made of, by source; `aliases` are other names
    for some of the clients.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def name(self, asked: str) -> str:
        """Return the model name for one that may be an alias."""
        return self.aliases.get(asked, asked)

    def source(self, name: str) -> str:
        """Return where the client of a model comes from."""
        found = (where for where, one in self.loaded.items() if name in one.clients)
        return next(found, "an unknown place")


def load_clients(
    environment: Environment,
    folders: Iterable[Path] = (),
    verdicts: Mapping[str, Verdict] | None = None,
) -> Registry:
    """Register the built-in clients, then installed ones, then those in `folders`.

    What a trial found to be bad is left out.
    """
    registry = Registry()
    take(registry, environment, sources(environment.model_repository, folders), verdicts or {})
    return registry


def take(
    registry: Registry,
    environment: Environment,
    found: Iterable[Source],
    verdicts: Mapping[str, Verdict],
) -> None:
    """Bring a registry up to date; what is under way goes on with the objects that it has.

    A source that has not changed keeps its objects. A registry that was filled before takes only
    what a trial has accepted. Of a source that is new to it those classes count that are good; one
    of which it serves something is replaced as a whole or kept as a whole.
    """
    found = list(found)
    before = registry.loaded
    kept = {s.where: before[s.where] for s in found if is_kept(s, before, verdicts)}
    loaded: dict[str, Loaded] = {}
    for source in found:
        verdict = verdict_of(source, verdicts)
        if source.where in kept:
            loaded[source.where] = kept[source.where]
        elif verdict and verdict.bad and not verdict.good:
            loaded[source.where] = Loaded(source.mark, broken=dict(verdict.bad))
        elif verdict or not before:
            bad = verdict.bad if verdict else {}
            new = load(source, environment, owners({**loaded, **kept}), bad)
            old = before.get(source.where)
            loaded[source.where] = old if old and old.clients and new.broken else new
    registry.loaded = loaded
    registry.clients = {n: c for one in loaded.values() for n, c in one.clients.items()}
    registry.aliases = {a: n for n, client in registry.clients.items() for a in client.aliases}
    registry.broken = {
        f"{name} ({where})" if name in registry.clients else name: why
        for where, one in loaded.items()
        for name, why in one.broken.items()
    }


def verdict_of(source: Source, verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """Return what a trial said of a source as it is now; `None` where there was none since."""
    verdict = verdicts.get(source.where)
    return verdict if verdict and verdict.mark == source.mark else None


def is_kept(source: Source, before: Mapping[str, Loaded], verdicts: Mapping[str, Verdict]) -> bool:
    """Whether what was loaded of a source before stays."""
    if source.where not in before:
        return False
    old, verdict = before[source.where], verdict_of(source, verdicts)
    if verdict is None or old.is_all(source) or (source.installed and old.clients):
        return True
    return bool(verdict.bad) and (bool(old.clients) or old.mark == source.mark)


def owners(loaded: Mapping[str, Loaded]) -> dict[str, str]:
    """Return the source of each client, by its model name and by its aliases."""
    return {
        name: where
        for where, one in loaded.items()
        for model, client in one.clients.items()
        for name in (model, *client.aliases)
    }


def load(
    source: Source,
    environment: Environment,
    taken: Mapping[str, str],
    bad: Mapping[str, str] | None = None,
) -> Loaded:
    """Import a source and make its clients; what is wrong with one is noted and logged.

    Args:
        source: which.
        environment: what the clients are made with.
        taken: the sources of the names that others have.
        bad: why some of its clients are not to be made, by model name.

    """
    loaded = Loaded(source.mark)
    try:
        found = source.classes()
    except ClientDisabled as error:
        found = []
        loaded.broken.update(dict.fromkeys(names_in(source), error.message))
    except (Exception, SystemExit) as error:
        # Whatever a stranger's file does at import disables that file alone.
        log.exception("%s cannot be imported", source.where)
        found = []
        reason = f"{source.where} cannot be imported: {described(error)}"
        loaded.broken.update(dict.fromkeys(names_in(source), reason))
    for client in dict.fromkeys(found):  # a class may have two names in its file
        name = str(getattr(client, "modelname", None) or source.where)
        if bad and name in bad:
            loaded.broken[name] = bad[name]
            continue
        try:
            register(client, environment, source.where, taken, loaded)
        except (Exception, SystemExit) as error:
            # Its declarations may be anything; they disable that class alone.
            where = f"{client.__name__} in {source.where}"
            log.exception("%s cannot be registered", where)
            loaded.broken[name] = f"{where}: it cannot be registered: {described(error)}"
    for reason in dict.fromkeys(loaded.broken.values()):
        log.error("client disabled: %s", reason)
    return loaded


def names_in(source: Source) -> list[str]:
    """Return the models that a source is about, though it cannot be imported.

    Without a model in it that can be seen, the source itself.
    """
    if source.model:
        return [source.model]
    try:
        text = Path(source.where).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # an entry point, or a file that cannot be read
        text = ""
    return DECLARED.findall(text) or [source.where]


def register(
    client: type[Client],
    environment: Environment,
    source: str,
    taken: Mapping[str, str],
    loaded: Loaded,
) -> None:
    """Make the client's one object, or note why there is none."""
    where = f"{client.__name__} in {source}"
    name = str(getattr(client, "modelname", None) or source)
    if fault := declaration_fault(client):
        loaded.broken[name] = f"{where}: {fault}"
    elif owned := name_fault(client, environment, {**taken, **owners({source: loaded})}):
        place = f"{name} ({source})" if name in taken or name in loaded.clients else name
        loaded.broken[place] = f"{where}: {owned}"
    else:
        try:
            made = client(environment)
            made.served_by  # noqa: B018  asked now, where a failure is its own
            loaded.clients[name] = made
        except ClientDisabled as error:
            loaded.broken[name] = error.message
        except (Exception, SystemExit) as error:
            folder = environment.model_repository / (client.model or client.modelname)
            if not folder.exists():
                # Its labels or its tokenizer lie in a folder that was left out.
                loaded.absent[name] = folder
                log.info("%s is not served: there is no folder %s", where, folder)
                return
            log.exception("%s cannot be made", where)
            loaded.broken[name] = f"{where}: it cannot be made: {described(error)}"


def name_fault(client: type[Client], environment: Environment, taken: Mapping[str, str]) -> str:
    """Return which of a class's names belongs to another; nothing where none does."""
    for name in (client.modelname, *client.aliases):
        if name in taken:
            return f"the name {name!r} belongs to the client in {taken[name]}; choose another"
    for name in client.aliases:
        if (environment.model_repository / name).exists():
            return f"the alias {name!r} is the name of another model; choose another"
    return ""


def declaration_fault(client: type[Client]) -> str:
    """Return what is wrong with a class as its author wrote it; nothing where it is right."""
    return (
        naming_fault(client)
        or method_fault(client)
        or example_fault(client)
        or parameters_fault(client.parameters)
    )


def naming_fault(client: type[Client]) -> str:
    """Return what is wrong with the names that a class declares."""
    if not isinstance(getattr(client, "modelname", None), str) or not client.modelname:
        return 'it has no name; write `modelname = "…"` in the class'
    if not isinstance(client.model, str):
        return f"its model is {client.model!r}; write the name of one folder of the repository"
    if not isinstance(client.aliases, tuple | list) or not all(
        isinstance(name, str) and name for name in client.aliases
    ):
        return f'its aliases are {client.aliases!r}; write `aliases = ("…",)`'
    return ""


def method_fault(client: type[Client]) -> str:
    """Return what is wrong with the one method that a class must have."""
    if missing := sorted(client.__abstractmethods__):
        return f"it lacks the method {missing[0]}(self, payload)"
    if inspect.iscoroutinefunction(client.inference):
        return "its inference is async; write `def inference(self, payload)`: threads wait for it"
    try:
        inspect.signature(client.inference).bind(None, {})
    except TypeError:
        return "its inference takes something else; write `def inference(self, payload)`"
    return ""


def example_fault(client: type[Client]) -> str:
    """Return what is wrong with a class's example."""
    example = getattr(client, "example", None)
    if not isinstance(example, Mapping):
        has = "it has no example" if example is None else f"its example is {example!r:.60}"
        return f"{has}; write `example = {{…}}`, a payload that works, in the class"
    try:
        json.dumps(dict(example))
    except (TypeError, ValueError) as error:
        return f"its example is not JSON, as a caller would send it: {error}"
    return ""


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
        except (TypeError, ValueError):
            return f"the limits of its parameter {name!r} are no numbers, or its choices no texts"
    return ""


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def sources(repository: Path, folders: Iterable[Path] = ()) -> Iterator[Source]:
    """Yield where clients may be, as things are now, in the order in which names are given away."""
    for path in client_files(BUILT_IN):
        yield file_source(path, built_in=True)
    for path in sorted(repository.glob(f"*/{FILE}")):
        yield model_source(path)
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
        elif os.path.isfile(path / "__init__.py"):  # noqa: PTH113  Path's raises where it may not look
            yield path / "__init__.py"


def file_source(path: Path, *, built_in: bool) -> Source:
    files = [path] if path.name != "__init__.py" else sorted(path.parent.rglob("*"))
    mark = " ".join(filter(None, map(file_mark, files)))
    return Source(
        str(path),
        mark,
        lambda: classes_of_built_in(path, mark) if built_in else classes_of_file(path),
        foreign=not built_in,
    )


def model_source(path: Path) -> Source:
    """Return the source for a model with a `dispatch.toml`; what it names lies beside it."""
    try:
        beside = [one for one in path.parent.iterdir() if not one.name.isdigit()]
        inside = [one for folder in beside if folder.is_dir() for one in folder.iterdir()]
    except OSError:  # it is being unloaded
        beside, inside = [path], []
    mark = " ".join(filter(None, map(file_mark, sorted([*beside, *inside]))))
    return Source(str(path), mark, lambda: [client_class(path)], model=path.parent.name)


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
        foreign=True,
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
