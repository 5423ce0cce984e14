"""Look for mistakes in the models of a folder."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Iterator
from errno import EACCES
from pathlib import Path

from clients.model_files.files import explain_denial, is_litter
from clients.model_files.model_folders import (
    CONFIG,
    PLAIN_MODELS,
    can_be_read,
    is_model,
    models_in,
)
from container.model_check.findings import Findings
from tool.checks.model_advice import check_model

CODE = "code"  # the folder of client classes in a model archive
MOST_SHOWN = 5
CHMOD = "`chmod -R a+rX`"
NO_FILE = ("is neither a file nor a folder, and the service unpacks no others", "remove it")
VOLUMES_OWN = "lost+found"  # which root alone may read


def note_unreadable(findings: Findings) -> list[Path]:
    """Note what cannot be read below a folder; return it."""
    closed = list(unreadable(findings.root))
    for path in closed:
        denied_here = PermissionError(EACCES, os.strerror(EACCES))
        findings.error(path, *(NO_FILE if is_special(path) else cannot_be_read(denied_here)))
    return closed


def unreadable(root: Path) -> Iterator[Path]:
    """Yield what cannot be read below a folder: folders, Python files, pipes, sockets, devices."""
    for place, names, files in os.walk(root):
        inside = [Path(place, name) for name in names if name != VOLUMES_OWN]
        closed = [path for path in inside if not (is_litter(path) or can_be_read(path))]
        yield from closed
        for path in (Path(place, name) for name in files):
            is_denied = path.suffix == ".py" and not is_litter(path) and explain_denial(path)
            if is_denied or is_special(path):
                yield path
        names[:] = [path.name for path in inside if path not in closed and not is_litter(path)]


def is_special(path: Path) -> bool:
    """Whether a path is neither a file nor a folder, or a link to such: who reads it may hang."""
    return path.exists() and not (path.is_file() or path.is_dir())


def cannot_be_read(error: OSError) -> tuple[str, str]:
    """Return what is wrong with a file or folder, and the fix."""
    fix = f"let all users read it: {CHMOD}" if isinstance(error, PermissionError) else ""
    return f"cannot be read ({error.strerror or error})", fix


def check_models(findings: Findings, closed: Collection[Path], *, may_be_empty: bool) -> list[str]:
    """Check every model of a folder; return their names.

    Models with what is `closed`, which is reported already, are passed over. A folder with classes
    `may_be_empty`.
    """
    root = findings.root
    found = dict(models_in(root))
    inside = [path for path in folders(root) if is_model(path)]
    if root in found.values() and (root / CONFIG).is_file() and inside:
        findings.error(
            root / CONFIG,
            "is beside the model folders, so that the whole folder is taken for one model",
            "move it into the folder of its model",
        )
        found = {path.name: path for path in inside}
    passed_over = {one for path in closed for one in (path, *path.parents)}
    for name, folder in found.items():
        if folder in passed_over and folder != root:
            continue
        try:
            check_model(name, folder, findings)
        except OSError as error:
            file = Path(error.filename) if isinstance(error.filename, str) else folder
            findings.error(file, *cannot_be_read(error))
        except Exception as error:  # the other models are checked all the same
            traceback.print_exc()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            findings.error(folder, f"could not be checked: {reason}", "")
    if root not in found.values() and (found or not may_be_empty):
        left = [one for one in folders(root) if one not in (*found.values(), *passed_over)]
        astray(left, findings)
    if not (found or may_be_empty or closed):
        findings.error(
            root,
            "holds no model",
            "expected a folder for each model, with config.pbtxt and 1/model.onnx in it",
        )
    return sorted(found)


def folders(root: Path) -> list[Path]:
    """Return the folders that may be models."""
    return [
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and path.name != CODE and not is_litter(path)
    ]


def astray(left: list[Path], findings: Findings) -> None:
    """Note what is missing in folders that are no models."""
    unknown = []
    for folder in left:
        deeper = [
            path
            for path in (*folder.glob("*"), *folder.glob("*/*"))
            if path.is_dir() and is_model(path)
        ]
        plain = [path for path in folder.glob("*/*") if path.name in PLAIN_MODELS]
        for path in deeper[:1]:
            findings.error(
                path,
                "is a model that is too deep to be found",
                f"move it up, beside {folder.name}/; an archive is packed with `-C FOLDER .`",
            )
        for path in plain[: not deeper]:
            findings.error(path, "is too deep to be found", f"move it to {folder.name}/1/")
        is_environment = (folder / "bin" / "activate").is_file()  # which several models may share
        if not (deeper or plain or is_environment):
            unknown.append(folder.name)
    if unknown:
        more = f" and {len(unknown) - MOST_SHOWN} more" if len(unknown) > MOST_SHOWN else ""
        findings.warning(
            findings.root,
            f"has folders that are no models: {', '.join(unknown[:MOST_SHOWN])}{more}",
            "leave them out, or put a config.pbtxt and 1/ into them",
        )
