"""Look for mistakes in `dispatch.toml` files and client classes."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from clients.base import Client
from clients.families.base.dispatch_toml import FILE
from clients.model_files.config_text import read_folder
from clients.model_files.files import is_litter
from clients.model_files.model_folders import find_served, models_in, version_folders
from clients.plugins.discovery import sources
from clients.plugins.registry import Loaded, Registry
from clients.triton.server import ModelState
from container.model_check.findings import Findings
from container.model_check.model import BUILT_IN
from dispatcher.rollout.in_force import VersionsInForce, plans_of_files
from dispatcher.status.checks import LOGGED, failures
from tool.engines.offline import Offline, compose_links, load_offline, settings_here, silence


def check_clients(findings: Findings, folders: Iterable[Path]) -> None:
    """Check every `dispatch.toml` and every client class in `folders`.

    The classes are imported, and asked their examples.
    """
    folders = list(dict.fromkeys(path.resolve() for path in folders))
    unread(findings, folders)
    settings = settings_here()
    with compose_links(settings, findings.root, BUILT_IN) as repository:
        others = {source.where for source in sources(repository)}
        server = Offline(repository)
        registry = load_offline(repository, folders, server)
        for where, loaded in registry.loaded.items():
            path = Path(where)
            folder = path.parent.resolve()
            if path.name == FILE:
                is_own = folder.is_relative_to(findings.root) or not folder.is_relative_to(BUILT_IN)
            else:  # others are the project's own, or installed
                is_own = where not in others
            if is_own:
                asked = ask(loaded, server, settings.client_timeout)
                note_faults(findings, path, loaded, asked, repository)
        check_rollouts(findings, registry, repository)


def check_rollouts(findings: Findings, registry: Registry, repository: Path) -> None:
    """Note what keeps `shadow` and `canary` of a `dispatch.toml` from being tried."""
    states = [
        ModelState(folder.name, version.name, "READY")
        for folder in repository.iterdir()
        for version in find_served(read_folder(folder), version_folders(folder))
    ]
    said, faults = plans_of_files(registry.clients)
    found = VersionsInForce(said, registry, states, {}).plans
    right = [(name, plan) for name, plan in found.items() if name not in faults]
    reasons = [(name, why) for name, plan in right for why in plan.waiting.values()]
    for name, why in (*faults.items(), *reasons):
        file = (repository / name / FILE).resolve()
        findings.error(file, why.removeprefix(f"{file}: "), "")


@dataclass
class Asked:
    """What came of asking the clients of one source their own examples."""

    failing: list[str] = field(default_factory=list)  # why some fail, as the server says it
    missing: dict[str, str] = field(default_factory=dict)  # by client, models that are not there


def ask(loaded: Loaded, server: Offline, timeout: float) -> Asked:
    """Ask each client of a source its own examples, as far as its models can be run here."""
    asked = Asked(missing={name: folder.name for name, folder in loaded.absent.items()})
    for name, client in loaded.clients.items():
        server.missing.clear()
        server.not_run.clear()
        reason = reason_of(name, client, timeout)
        if reason and server.missing:
            asked.missing[name] = min(server.missing)
        elif reason and not server.not_run:
            asked.failing.append(reason)
    return asked


def reason_of(name: str, client: Client, timeout: float) -> str:
    """Return why a client fails an example of its own; the empty text where it answers."""
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(failures({name: client}, timeout).get(name, "")), daemon=True
    )
    with silence():
        thread.start()
        thread.join(timeout)  # it may never return
    late = f"its client has not returned from its own example in {timeout:.0f} s"
    return (found[0] if found else late).removesuffix(LOGGED)


def unread(findings: Findings, folders: Iterable[Path]) -> None:
    """Note files of clients in folders that are not read."""
    root = findings.root
    models = {folder for _, folder in models_in(root)}
    for path in sorted(one for depth in ("*", "*/*", "*/*/*") for one in root.glob(depth)):
        if any(map(is_litter, (path, *path.relative_to(root).parents))):
            continue
        if difflib.get_close_matches(path.name, [FILE], cutoff=0.8):
            if path.parent not in models:
                findings.warning(
                    path, "is not read here", "move it beside the config.pbtxt of its model"
                )
            elif path.name != FILE:
                findings.warning(path, "is not read under this name", f"rename it to {FILE}")
        elif has_client(path) and not any(map(path.is_relative_to, folders)):
            findings.warning(
                path,
                "has a client, but is not looked for here",
                "move it to code/clients/, or name its folder in CLIENTS_PATH",
            )


def has_client(path: Path) -> bool:
    """Whether a Python file seems to be about clients, by its text."""
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except PermissionError:  # which is reported for itself
        return False
    return "clients.base" in text


def note_faults(
    findings: Findings, path: Path, loaded: Loaded, asked: Asked, repository: Path
) -> None:
    """Note what is wrong with the clients of a file of classes, or with a `dispatch.toml`."""
    is_toml = path.name == FILE  # whose errors say how to mend them
    file = path.resolve() if is_toml else path  # not the link in the repository
    disabled = "" if is_toml else "fix it: until then its classes are disabled"
    failing = "" if is_toml else "mend the class, or write an example that works"
    fixes = dict.fromkeys(loaded.broken.values(), disabled) | dict.fromkeys(asked.failing, failing)
    for reason, fix in fixes.items():
        said = reason.removeprefix(f"{path}: ").removeprefix(f"{file}: ")  # by either name
        said = said if is_toml else said.replace(str(file), file.name)
        for folder in (repository, findings.root, BUILT_IN):
            said = said.replace(f"{folder}/", "")
        findings.error(file, said, fix)
    if is_toml:
        return
    for client, model in asked.missing.items():
        findings.warning(
            file,
            f"asks the model {model!r} for {client!r}, which is not there: callers get 404",
            f"add the folder {model}/, or set `model` in the class",
        )
    if not (loaded.clients or loaded.broken or loaded.absent):
        findings.warning(
            file,
            "has no client",
            "build a class in it on clients.base.Client, or move it out of this folder",
        )
