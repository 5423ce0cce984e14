"""`dispatcher check PATH`: find mistakes without starting anything."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from clients.model_files.model_folders import can_be_read, models_in
from clients.plugins.discovery import client_files
from container.model_check.findings import Findings
from container.trouble import Trouble
from tool.checks.client import check_clients, has_client
from tool.checks.models import CODE, check_models, refuse_unreadable
from tool.engines.offline import settings_here

CLIENTS = Path(CODE, "clients")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path(),
        metavar="PATH",
        help="a model repository or a model folder (default: here)",
    )
    parser.add_argument(
        "--no-clients",
        action="store_true",
        help="do not import client classes (PATH/code/clients, CLIENTS_PATH) to check them",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Check, and print what was found; return 1 where something is wrong, else 0."""
    path: Path = options.path
    if not path.is_dir():
        raise Trouble(f"there is no folder {str(path)!r}; an archive is checked unpacked")
    findings = Findings(path.resolve())
    classes = not options.no_clients
    folders = settings_here().clients_path if classes else ()
    models = check_all(findings, folders, clients=classes)
    if options.json:
        found = [asdict(one) for one in findings.found]
        sys.stdout.write(f"{json.dumps({'models': models, 'findings': found}, indent=2)}\n")
    else:
        sys.stdout.write(report(findings, models))
    return 1 if findings.errors else 0


def check_all(
    findings: Findings, folders: Sequence[Path] = (), *, clients: bool = True
) -> list[str]:
    """Check models, and the client classes beside them and in `folders`; return the models' names.

    Without `clients` no file is imported.
    """
    refuse_unreadable(findings.root)
    its = findings.root / CLIENTS
    if not can_be_read(its) and not any(models_in(findings.root)):
        its = findings.root  # such as a folder that CLIENTS_PATH names
    has_classes = any(map(has_client, client_files(its)))
    models = check_models(findings, may_be_empty=has_classes)
    # The server looks there for others' classes too, but not into models.
    own = [its] if has_classes or its != findings.root else []
    if clients:
        check_clients(findings, [one for one in (*folders, *own) if can_be_read(one)])
    return models


def report(findings: Findings, models: Sequence[str]) -> str:
    """Return the findings as lines, and a last one that counts them."""
    warnings = len(findings.found) - findings.errors
    last = (
        f"{len(models)} models ({', '.join(models) or 'none'}): "
        f"{findings.errors} errors, {warnings} warnings"
    )
    return "".join(f"{one}\n" for one in (*findings.found, last))
