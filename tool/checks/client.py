"""Look for mistakes in `dispatch.toml` files and client classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from clients.older_class import OlderClass
from clients.plugins.discovery import sources
from clients.plugins.dispatch_toml import FILE
from clients.plugins.registry import Loaded
from clients.repository.files import is_litter
from clients.repository.model_folders import models_in
from clients.repository.requirements import lacks_of, requirement_files
from tool.checks.findings import Findings
from tool.checks.model import BUILT_IN
from tool.offline import composed, fits, load_offline, settings_here


def check_clients(findings: Findings, folders: Iterable[Path]) -> None:
    """Check every `dispatch.toml` and every client class in `folders`; import the classes."""
    folders = list(folders)
    unread(findings, folders)
    with composed(settings_here(), findings.root, BUILT_IN) as repository:
        others = {source.where for source in sources(repository)}
        registry = load_offline(repository, folders)
        for where, loaded in registry.loaded.items():
            path = Path(where)
            if path.name == FILE:
                folder = path.parent.resolve()
                if folder.is_relative_to(findings.root) or not folder.is_relative_to(BUILT_IN):
                    dispatch_toml(findings, path, loaded, repository)
            elif where not in others:  # those are the project's own, or installed
                client_file(findings, path, loaded, repository)


def check_requirements(findings: Findings, folders: Iterable[Path]) -> None:
    """Note what a `requirements.txt` beside classes wants, and this environment has not."""
    for file in requirement_files(folders, findings.root):
        for one in lacks_of(file):
            findings.warning(one.file, one.what, one.fix, line=one.line)


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
                "move it to code/clients/, or name its folder in CLIENTS_PATH (and --clients)",
            )


def has_client(path: Path) -> bool:
    """Whether a Python file seems to be about clients, by its text."""
    if path.suffix != ".py" or not path.is_file():
        return False
    return "clients.base" in path.read_text(encoding="utf-8", errors="replace")


def dispatch_toml(findings: Findings, path: Path, loaded: Loaded, repository: Path) -> None:
    """Note what is wrong with the `dispatch.toml` of a model."""
    file = path.resolve()  # not the link in the repository
    wrong = [*loaded.broken.values(), *filter(None, map(fits, loaded.clients.values()))]
    for reason in wrong:
        for name in (str(path), str(file)):
            reason = reason.removeprefix(f"{name}: ")  # noqa: PLW2901  by either name
        findings.error(file, short(reason, repository, findings.root), "")


def short(reason: str, *folders: Path) -> str:
    """Return a reason with paths relative to the checked folders."""
    for folder in (*folders, BUILT_IN):
        reason = reason.replace(f"{folder}/", "")
    return reason


def client_file(findings: Findings, file: Path, loaded: Loaded, repository: Path) -> None:
    """Note what is wrong with the clients of one file."""
    for reason in dict.fromkeys(loaded.broken.values()):
        said = short(reason.replace(str(file), file.name), repository, findings.root)
        findings.error(file, said, "fix it: until then its classes are disabled")
    asked = {
        name: client.served_by
        for name, client in loaded.clients.items()
        if not isinstance(client, OlderClass)  # it knows of no models
    }
    asked |= {name: folder.name for name, folder in loaded.absent.items()}
    for name, model in asked.items():
        if not (repository / model).is_dir():
            findings.warning(
                file,
                f"asks the model {model!r} for {name!r}, which is not there: callers get 404",
                f"add the folder {model}/, or set `model` in the class",
            )
    if not (loaded.clients or loaded.broken or loaded.absent):
        findings.warning(
            file,
            "has no client",
            "build a class in it on clients.base.Client, or move it out of this folder",
        )
