"""Makes one object of each client class, and registers it under its `modelname`.

All are registered in the same way, wherever they come from (`clients/plugins/discovery.py`). A
class that cannot be used is disabled, with the reason; the others are not affected.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import MappingProxyType

from clients.base import Client, Environment
from clients.errors import ClientDisabled, UnknownModel
from clients.families.base.dispatch_toml import authors, remedy
from clients.model_files.files import Mark
from clients.model_files.model_folders import NAME
from clients.plugins.discovery import Source, names_in, sources
from clients.plugins.imports import PREFIX
from clients.plugins.validation import declaration_fault, object_fault
from clients.tensors.client import TensorClient
from clients.tensors.quoting import brief

log = logging.getLogger(__name__)

ADD_PACKAGE = (
    f"on your own machine `{sys.executable} -m pip install PACKAGE`; for containers "
    "build an image of four lines, `FROM triton-dispatcher`, `USER root`, "
    "`RUN /opt/triton-dispatcher/.venv/bin/pip install PACKAGE` and `USER 1000:0`; "
    "or make the class a package, and put pure Python beside its __init__.py: "
    "`pip install --target code/clients/NAME PACKAGE`"
)


@dataclass(frozen=True)
class Loaded:
    """The clients that were made from one source."""

    mark: Mark  # the source's, when it was loaded
    clients: dict[str, Client] = field(default_factory=dict)  # by model name
    # The reasons why other clients could not be made; by model name where it is known, else by
    # source
    broken: dict[str, str] = field(default_factory=dict)
    # Missing model folders, without which some clients cannot be made; by model name
    absent: dict[str, Path] = field(default_factory=dict)

    def is_all(self, source: Source) -> bool:
        """Whether loading the source again would change nothing."""
        come = any(folder.exists() for folder in self.absent.values())
        return self.mark == source.mark and not self.broken and not come


@dataclass
class Registry:
    """The clients by model name, and the reasons why others are disabled.

    A reload replaces each of these mappings and never changes one, so a thread that reads them
    meanwhile sees either the old clients or the new ones.
    """

    clients: dict[str, Client] = field(default_factory=dict)  # by model name
    broken: dict[str, str] = field(default_factory=dict)  # why clients are disabled, by model name
    loaded: dict[str, Loaded] = field(default_factory=dict)  # what was made from each source
    aliases: dict[str, str] = field(default_factory=dict)  # model names by alias

    def name(self, asked: str) -> str:
        """Return the model name for a model name or an alias."""
        return self.aliases.get(asked, asked)

    def source(self, name: str) -> str:
        """Return the source of a model's client, or of its broken client."""
        made = (where for where, one in self.loaded.items() if name in one.clients)
        broken = (where for where, one in self.loaded.items() if name in one.broken)
        return next(made, next(broken, "an unknown place"))

    def put(self, loaded: dict[str, Loaded]) -> None:
        """Take what was made from each source in the place of what there is."""
        self.loaded = loaded
        self.clients = {n: c for one in loaded.values() for n, c in one.clients.items()}
        self.aliases = {a: n for n, client in self.clients.items() for a in client.aliases}
        self.broken = {
            f"{name} ({where})" if name in self.clients else name: why
            for where, one in loaded.items()
            for name, why in one.broken.items()
        }


def load_clients(
    environment: Environment,
    folders: Iterable[Path] = (),
    fatal: Mapping[str, str] = MappingProxyType({}),
) -> Registry:
    """Register the clients of all sources, but for those that are `fatal` to a process, and why."""
    registry, made = Registry(), dict[str, Loaded]()
    for source in sources(environment.model_repository, folders):
        if reason := fatal.get(source.where):
            log.error("client disabled: %s", reason)
            broken = dict.fromkeys(names_in(source), reason)
            made[source.where] = Loaded(source.mark, broken=broken)
        else:
            made[source.where] = load(source, environment, owners(made))
    registry.put(made)
    environment.others.find = partial(find_client, registry, environment)
    return registry


def find_client(
    registry: Registry,
    environment: Environment,
    asked: str,
    until: float,  # noqa: ARG001  as all that find clients
    others: Iterable[str] = (),
) -> Client:
    """Return the client of a model or alias; for a model without one, a client for its tensors."""
    name = registry.name(asked)
    if client := registry.clients.get(name):
        return client
    if name in registry.broken:
        raise ClientDisabled(
            f"the client of {brief(name)} is disabled: {registry.broken[name]}",
            hint=remedy(Path(registry.source(name)), name),
        )
    if NAME.fullmatch(name) and (environment.model_repository / name).is_dir():
        return TensorClient(environment, name)
    folders = (one.name for one in environment.model_repository.glob("*/"))
    there = ", ".join(sorted({*registry.clients, *registry.aliases, *others, *folders}))
    raise UnknownModel(f"there is no model {brief(name)}", hint=f"there are {there or 'none'}")


def take(
    registry: Registry, environment: Environment, found: Iterable[Source], changed: Collection[str]
) -> None:
    """Make the clients of changed sources again; requests under way keep their objects.

    A source that has clients already is replaced as a whole or not at all. The clients of one that
    is not found are removed.
    """
    before = registry.loaded
    loaded = {where: one for where, one in before.items() if where not in changed}
    for source in found:
        if source.where in changed:
            new, old = load(source, environment, owners(loaded)), before.get(source.where)
            loaded[source.where] = old if old and old.clients and new.broken else new
    registry.put(loaded)


def owners(loaded: Mapping[str, Loaded]) -> dict[str, str]:
    """Return the source of each client, by model name and by alias."""
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
) -> Loaded:
    """Import a source and make its clients; log and note the reasons of failures."""
    loaded = Loaded(source.mark)
    try:
        found = source.classes()
    except ClientDisabled as error:
        found = []
        loaded.broken.update(dict.fromkeys(names_in(source), error.message))
    except (Exception, SystemExit) as error:
        # An author's file may raise anything when it is imported; it disables this file alone.
        log.exception("%s cannot be imported", source.where)
        found = []
        reason = f"{authors(source.where)} cannot be imported: {describe_error(error)}"
        loaded.broken.update(dict.fromkeys(names_in(source), reason))
    for client in dict.fromkeys(found):  # a class may have two names in its file
        name = str(getattr(client, "modelname", None) or source.where)
        try:
            register(client, environment, source.where, taken, loaded)
        except (Exception, SystemExit) as error:
            # Its declarations may raise anything too; they disable this class alone.
            where = f"{client.__name__} in {authors(source.where)}"
            log.exception("%s cannot be registered", where)
            reason = describe_error(error)
            loaded.broken[name] = f"{where}: it cannot be registered: {reason}"
    for reason in dict.fromkeys(loaded.broken.values()):
        log.error("client disabled: %s", reason)
    return loaded


def register(
    client: type[Client],
    environment: Environment,
    source: str,
    taken: Mapping[str, str],
    loaded: Loaded,
) -> None:
    """Make the one object of a client class, or note the reason why it cannot be made."""
    where = f"{client.__name__} in {authors(source)}"
    name = str(getattr(client, "modelname", None) or source)
    if fault := declaration_fault(client):
        loaded.broken[name] = f"{where}: {fault}"
    elif owned := name_fault(client, environment, {**taken, **owners({source: loaded})}):
        place = f"{name} ({source})" if name in taken or name in loaded.clients else name
        loaded.broken[place] = f"{where}: {owned}"
    else:
        try:
            made = client(environment)
            made.served_by  # noqa: B018  read now, so that a failure disables this class alone
            if fault := object_fault(made):
                loaded.broken[name] = f"{where}: {fault}"
            else:
                loaded.clients[name] = made
        except ClientDisabled as error:
            loaded.broken[name] = error.message
        except (Exception, SystemExit) as error:
            folder = environment.model_repository / (client.model or client.modelname)
            if not folder.exists() and may_lack(folder, error):
                # It reads labels or a tokenizer from the folder of a model that is not served.
                loaded.absent[name] = folder
                why = describe_error(error)
                log.info("%s is not served: there is no folder %s (%s)", where, folder, why)
                return
            log.exception("%s cannot be made", where)
            loaded.broken[name] = f"{where}: it cannot be made: {describe_error(error)}"


def may_lack(folder: Path, error: BaseException | None) -> bool:
    """Whether an error, or its cause, names a missing folder."""
    chain: list[BaseException] = []  # in which one may come again
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return any(str(folder) in str(one) for one in chain)


def name_fault(client: type[Client], environment: Environment, taken: Mapping[str, str]) -> str:
    """Return the mistake in a class whose name another client or model has, if any."""
    for name in (client.modelname, *client.aliases):
        if name in taken:
            return (
                f"the name {name!r} belongs to the client in {authors(taken[name])}; choose another"
            )
    for name in client.aliases:
        if (environment.model_repository / name).exists():
            if name == client.modelname:
                return f"the alias {name!r} is its own name; leave it out"
            return f"the alias {name!r} is the name of another model; choose another"
    return ""


def describe_error(error: BaseException) -> str:
    """Return an exception in words, with the author's line that raised it, if one did.

    For a module that was not found, how to add it, too.
    """
    fix = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.partition(".")[0]
        if name not in sys.modules and find_spec(name) is None:  # else it is inside of a package
            fix = f"if {name} is a file of your own, put {name}.py beside the class; "
            fix += f"else {ADD_PACKAGE}"
    lines = [
        f" ({authors(frame.f_code.co_filename)}:{line})"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(PREFIX)
    ]
    place = lines[-1] if lines else ""
    return f"{type(error).__name__}: {error}{place}{'; ' * bool(fix)}{fix}"
