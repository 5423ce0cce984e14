"""`dispatcher models`: what the container would serve with these settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clients.families.base.dispatch_toml import authors
from clients.model_files.model_folders import authors_folder
from clients.plugins.registry import Registry
from tool.engines.offline import compose_links, load_offline, settings_here


@dataclass(frozen=True)
class Row:
    """One line of the table: a name, its client and its model."""

    name: str
    model: str  # the folder in the repository, and whether it is missing: its callers get 404
    client: str
    source: str
    reason: str = ""  # why it is not served; nothing where it is
    aliases: tuple[str, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what `serve` would serve with the settings of this environment: MODEL_REPOSITORY, "
        "MODEL_DIR, MODEL_DIR_USE and CLIENTS_PATH. The clients are imported for it."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what is served and what is not, and why; return the exit code."""
    settings = settings_here()
    if settings.missing:
        sys.stderr.write(f"{settings.missing}\n")
    with compose_links(settings) as repository:
        registry = load_offline(repository, settings.client_folders)
        found = sorted(rows(registry, repository), key=lambda row: (bool(row.reason), row.name))
    if options.json:
        sys.stdout.write(f"{json.dumps([asdict(row) for row in found], indent=2)}\n")
        return 0
    served = [row for row in found if not row.reason]
    cells = [
        (", ".join((row.name, *row.aliases)), row.model, row.client, row.source) for row in served
    ]
    sys.stdout.write(table([("NAME", "MODEL", "CLIENT", "FROM"), *cells]))
    if left_out := [row for row in found if row.reason]:
        sys.stdout.write("\nnot served:\n")
        sys.stdout.writelines(f"  {row.name}: {row.reason}\n" for row in left_out)
    return 0


def rows(registry: Registry, repository: Path) -> Iterator[Row]:
    models = {path.name: authors_folder(path) for path in repository.iterdir()}
    named = set()
    for where, loaded in registry.loaded.items():
        source = show_path(where)
        for name, client in loaded.clients.items():
            model = client.served_by
            named.add(name)
            found = model if model in models else f"{model} (not there)"
            yield Row(name, found, type(client).__name__, source, aliases=tuple(client.aliases))
        for name, folder in loaded.absent.items():
            yield Row(
                name,
                folder.name,
                "",
                source,
                f"there is no model {folder.name!r}; {source} is for it",
            )
        for name, reason in loaded.broken.items():
            # The temporary repository is gone when the reason is read.
            own = reason.replace(f"{repository}/", "").replace(f"{Path.cwd()}/", "")
            yield Row(name, name, "", source, own)
            named.add(name)
    for model in models.keys() - named:
        yield Row(model, model, "tensors alone", show_path(str(models[model])))


def show_path(where: str) -> str:
    """Return the path of a source or folder, relative where it is below here."""
    path = authors(where)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )
