"""Look for mistakes in the models of a folder."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from clients.model_files.files import is_litter
from clients.model_files.model_folders import CONFIG, PLAIN_MODELS, folders, is_model, models_in
from container.model_check.findings import Findings
from container.trouble import Trouble
from tool.checks.model_advice import check_model

CODE = "code"  # the folder of client classes in a model archive
MOST_SHOWN = 5
CHMOD = "`chmod -R a+rX`"
VOLUMES_OWN = "lost+found"  # which root alone may read


def refuse_unreadable(root: Path) -> None:
    """Raise Trouble for the first file or folder that cannot be read: what it hides is unknown."""
    for path in (root, *sorted(root.rglob("*"))):
        if not path.exists() or is_litter(path) or path.name == VOLUMES_OWN:
            continue
        needed = os.R_OK | os.X_OK * path.is_dir()
        if not os.access(path, needed, effective_ids=os.access in os.supports_effective_ids):
            raise Trouble(f"{str(path)!r} cannot be read; let all users read it: {CHMOD}")


def check_models(findings: Findings, *, may_be_empty: bool) -> list[str]:
    """Check every model of a folder, which `may_be_empty`; return their names."""
    root = findings.root
    found = dict(models_in(root))
    beside = [path for path in folders(root) if path.name != CODE]
    inside = [path for path in beside if is_model(path)]
    if root in found.values() and (root / CONFIG).is_file() and inside:
        findings.error(
            root / CONFIG,
            "is beside the model folders, so that the whole folder is taken for one model",
            "move it into the folder of its model",
        )
        found = {path.name: path for path in inside}
    for name, folder in found.items():
        try:
            check_model(name, folder, findings)
        except Exception as error:  # the other models are checked all the same
            traceback.print_exc()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            findings.error(folder, f"could not be checked: {reason}", "")
    if root not in found.values() and (found or not may_be_empty):
        astray([one for one in beside if one not in found.values()], findings)
    if not (found or may_be_empty):
        findings.error(
            root,
            "holds no model",
            "expected a folder for each model, with config.pbtxt and 1/model.onnx in it",
        )
    return sorted(found)


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
