"""Makes one object of each client class, and registers it under its `modelname`.

All are registered in the same way, wherever they come from (`clients/plugins/discovery.py`). One
that cannot be used is disabled by itself, with the reason.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clients.base import Client, Environment
from clients.errors import ClientDisabled
from clients.plugins.discovery import Mark, Source, changes, names_in, sources
from clients.plugins.dispatch_toml import authors
from clients.plugins.validation import declaration_fault, object_fault

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """What became of one source.

    Args:
        mark: the source's, when it was loaded or tried before that.
        clients: by model name.
        broken: why others are not among them; by model name where one is known, else by the
            source.
        absent: model folders that are not there, without which some clients cannot be made.
        late: which of the broken ones came after the start, when their models had no client.

    """

    mark: Mark
    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    absent: dict[str, Path] = field(default_factory=dict)
    late: tuple[str, ...] = ()

    def is_all(self, source: Source) -> bool:
        """Whether loading the source again would change nothing."""
        come = any(folder.exists() for folder in self.absent.values())
        return not changes(self.mark, source.mark) and not self.broken and not come


@dataclass(frozen=True)
class Verdict:
    """What a trial said of a source in the state that `mark` stands for.

    Args:
        mark: the source's, when it was tried, as `clients.plugins.discovery.tried` returns it.
        good: the clients in it that work.
        bad: why others do not; by model name where one is known, else by the source.
        late: which of the bad ones came after the start, when their models had no client: those
            are served as before, as plain tensors.

    """

    mark: Mark
    good: tuple[str, ...] = ()
    bad: Mapping[str, str] = field(default_factory=dict)
    late: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Verdict:
        """Return what was written as JSON, which has lists alone."""
        late = tuple(fields.get("late", ()))
        return cls(fields["mark"], tuple(fields["good"]), fields["bad"], late)

    @property
    def reason(self) -> str:
        """Why not all of it works; nothing where it does."""
        return "; ".join(dict.fromkeys(self.bad.values()))


@dataclass
class Registry:
    """The clients by model name, and why others are not among them.

    All are replaced as a whole, never changed: who looks while others are taken up sees the old
    ones or the new ones. `loaded` is what they were made of, by source; `aliases` are other names
    for some of the clients; `late` are those of the broken that came when their models had none,
    which are served as plain tensors, as before.
    """

    clients: dict[str, Client] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    loaded: dict[str, Loaded] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    late: frozenset[str] = frozenset()

    def name(self, asked: str) -> str:
        """Return the model name for one that may be an alias."""
        return self.aliases.get(asked, asked)

    def source(self, name: str) -> str:
        """Return where the client of a model comes from; a broken one where there is no other."""
        made = (where for where, one in self.loaded.items() if name in one.clients)
        broken = (where for where, one in self.loaded.items() if name in one.broken)
        return next(made, next(broken, "an unknown place"))

    def disabled(self, name: str) -> str:
        """Return why a model must not be asked without its client; nothing where it may be."""
        return "" if name in self.late else self.broken.get(name, "")


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
    there: Iterable[str] = (),
) -> None:
    """Bring a registry up to date; what is under way goes on with the objects that it has.

    A source that has not changed keeps its objects. A registry that was filled before takes only
    what a trial has accepted. Of a source that is new to it those classes count that are good; one
    of which it serves something is replaced as a whole or kept as a whole. One that is not found
    is gone, unless it is among those that are `there` all the same.
    """
    found = list(found)
    before = registry.loaded
    missed = set(there) - {source.where for source in found}
    loaded = {where: one for where, one in before.items() if where in missed}
    kept = {s.where: before[s.where] for s in found if is_kept(s, before, verdicts)}
    for source in found:
        verdict = verdict_of(source, verdicts)
        if source.foreign and not before:  # it counts though the code has written itself anew
            verdict = verdicts.get(source.where)
        if source.where in kept:
            loaded[source.where] = kept[source.where]
        elif verdict and verdict.bad and not verdict.good:
            loaded[source.where] = Loaded(verdict.mark, broken=dict(verdict.bad), late=verdict.late)
        elif verdict or not before:
            bad = verdict.bad if verdict else {}
            new = load(source, environment, owners({**loaded, **kept}), bad)
            if verdict:
                new = replace(new, mark=verdict.mark, late=verdict.late)
            old = before.get(source.where)
            loaded[source.where] = old if old and old.clients and new.broken else new
    registry.loaded = loaded
    registry.clients = {n: c for one in loaded.values() for n, c in one.clients.items()}
    registry.aliases = {a: n for n, client in registry.clients.items() for a in client.aliases}
    registry.late = frozenset(name for one in loaded.values() for name in one.late)
    registry.broken = {
        f"{name} ({where})" if name in registry.clients else name: why
        for where, one in loaded.items()
        for name, why in one.broken.items()
    }


def verdict_of(source: Source, verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """Return what a trial said of a source as it is now; `None` where there was none since."""
    verdict = verdicts.get(source.where)
    return verdict if verdict and not changes(verdict.mark, source.mark) else None


def is_kept(source: Source, before: Mapping[str, Loaded], verdicts: Mapping[str, Verdict]) -> bool:
    """Whether what was loaded of a source before stays."""
    if source.where not in before:
        return False
    old, verdict = before[source.where], verdict_of(source, verdicts)
    if verdict is None or old.is_all(source) or (source.installed and old.clients):
        return True
    return bool(verdict.bad) and (bool(old.clients) or not changes(old.mark, source.mark))


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
        reason = f"{authors(source.where)} cannot be imported: {described(error)}"
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
            where = f"{client.__name__} in {authors(source.where)}"
            log.exception("%s cannot be registered", where)
            loaded.broken[name] = f"{where}: it cannot be registered: {described(error)}"
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
    """Make the client's one object, or note why there is none."""
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
            made.served_by  # noqa: B018  asked now, where a failure is its own
            if fault := object_fault(made):
                loaded.broken[name] = f"{where}: {fault}"
            else:
                loaded.clients[name] = made
        except ClientDisabled as error:
            loaded.broken[name] = error.message
        except (Exception, SystemExit) as error:
            folder = environment.model_repository / (client.model or client.modelname)
            if not folder.exists() and is_for_lack_of(folder, error):
                # Its labels or its tokenizer lie in a folder that was left out.
                loaded.absent[name] = folder
                why = described(error)
                log.info("%s is not served: there is no folder %s (%s)", where, folder, why)
                return
            log.exception("%s cannot be made", where)
            loaded.broken[name] = f"{where}: it cannot be made: {described(error)}"


def is_for_lack_of(folder: Path, error: BaseException | None) -> bool:
    """Whether a folder that is not there may be why an error, or one before it, was raised.

    Libraries that do not name the file raise nothing more special than these: `transformers` an
    `OSError`, `tokenizers` an `Exception`, `onnxruntime` a `NoSuchFile`. A mistake in a class has
    a kind of its own.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        file = getattr(error, "filename", None) if isinstance(error, OSError) else None
        if isinstance(file, str | bytes):
            if Path(os.fsdecode(file)).resolve().is_relative_to(folder.resolve()):
                return True
        elif type(error).__name__ in {"Exception", "OSError", "FileNotFoundError", "NoSuchFile"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def name_fault(client: type[Client], environment: Environment, taken: Mapping[str, str]) -> str:
    """Return which of a class's names belongs to another; nothing where none does."""
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


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
