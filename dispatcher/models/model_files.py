"""Finds and checks a model's files, before Triton reads them."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from clients.errors import ClientDisabled, InferenceError, ModelFailed, TooLargeAtOnce
from clients.families.base.dispatch_toml import FILE as CLIENT_FILE
from clients.families.base.family import client_class
from clients.model_files.config_text import line_of, read_if_right
from clients.model_files.files import is_litter, text_of
from clients.model_files.model_folders import (
    CONFIG,
    PLAIN_MODELS,
    authors_folder,
    has_versions,
    is_its_own_version,
)
from clients.triton.server import ModelState
from dispatcher.errors import BadModel, OutOfMemory

EXPECTED_FILES = "config.pbtxt and 1/model.onnx, or a plain model.onnx"
CHECK_S = 60.0  # it opens the model, which Triton has just failed to load
MOST_FINDINGS = 3
WELL = frozenset({"READY", "LOADING", "UNLOADING"})
MEND = "mend it in {}, then load it again"
MAX_CLIENT_FILE = 2**20  # bytes of a dispatch.toml

log = logging.getLogger(__name__)


class NoModel(BadModel):
    """A folder is no model, though it may look like one to its author."""


def read_client_file(path: Path) -> bytes:
    """Return the content of a `dispatch.toml`, to be copied."""
    with path.open("rb") as file:
        content = file.read(MAX_CLIENT_FILE + 1)
    if len(content) > MAX_CLIENT_FILE:
        raise BadModel(f"{path} has more than {MAX_CLIENT_FILE // 2**20} MiB")
    return content


def read_config(folder: Path) -> str:
    config = folder / CONFIG
    try:
        return text_of(config)
    except UnicodeDecodeError as error:
        raise BadModel(f"{config} is not UTF-8: {error}", hint="save it as UTF-8") from error


def refuse_other_name(text: str, name: str) -> None:
    """Refuse a configuration whose `name` is not its folder's, as in a copied folder."""
    for one in read_if_right(text).all("name"):  # Triton's parser reads more than this one
        if one.value != name:
            raise ModelFailed(
                f'{CONFIG}:{line_of(text, one)}: `name` is "{one.value}", but the '
                f'folder is "{name}"',
                hint=f'write name: "{name}", or leave the line out',
            )


def placement_error(url: str, error: OSError) -> InferenceError:
    """Return the error for a folder that cannot be put into the repository."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return OutOfMemory(
            f"there is no room for the model's links in the container's RUN_DIR: {error.strerror}"
        )
    return BadModel(
        f"{error.filename or url}: {error.strerror}",
        hint=f"expected {EXPECTED_FILES}, readable by the container's user",
    )


def refuse_wrong_client_file(folder: Path) -> None:
    """Refuse a `dispatch.toml` with a mistake that shows without the model."""
    if (file := folder / CLIENT_FILE).is_file():
        read_client_file(file)
        client_class(file)


def check_findings(folder: Path) -> list[str]:
    """Return what `dispatcher check` finds wrong with a model's folder, a sentence for each.

    Warnings only where there is no error: one may be why Triton could not load the model. In a
    process of its own: the check looks into files with the engines' own libraries.
    """
    command = (sys.executable, "-m", "container.model_check", str(folder))
    try:
        ran = subprocess.run(command, capture_output=True, timeout=CHECK_S, check=False)
        found = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        log.warning("%s cannot be checked: %s: %s", folder, type(error).__name__, error)
        return []
    errors = [said for level, said in found if level == "error"]
    return (errors or [said for _, said in found])[:MOST_FINDINGS]


@dataclass
class Explainer:
    """Logs what is wrong with models that Triton could not load, once for each."""

    wanted: Path  # the folder with a file for each model that Triton is to load
    repository: Path  # which Triton reads
    findings: Callable[[Path], Iterable[str]] = check_findings
    _explained: set[str] = field(default_factory=set)

    def look(self, states: Iterable[ModelState]) -> None:
        """Look at the models that Triton lists; log in a thread, since a check takes seconds."""
        listed = list(states)
        well = {state.name for state in listed if state.state in WELL}
        lost = {one.name for one in listed if (self.wanted / one.name).exists()} - well
        self._explained -= well
        if new := sorted(lost - self._explained):
            self._explained |= lost
            threading.Thread(target=self.explain, args=(new,), daemon=True).start()

    def explain(self, names: Iterable[str]) -> None:
        """Log what is wrong with some models."""
        for name in names:
            for line in self.findings(authors_folder(self.repository / name)):
                log.error("the model %s is not loaded: %s", name, line)


@contextmanager
def refusals(
    url: str,
    findings: Callable[[Path], Iterable[str]],
    places: Mapping[Path, Path] = MappingProxyType({}),
) -> Iterator[None]:
    """Turn what keeps a model from being loaded into errors for the caller who named its folder."""
    try:
        yield
    except OSError as error:
        raise placement_error(url, error) from error
    except ClientDisabled as error:
        raise BadModel(error.message, hint=MEND.format(url)) from error
    except NoModel as error:
        found = findings(Path(url.removeprefix("file://")))
        raise BadModel(error.message, hint="; ".join(found) or error.hint) from error
    except ModelFailed as error:
        found = findings(Path(url.removeprefix("file://")))
        raise load_error(url, error, places, found) from error


def load_error(
    what: str,
    error: ModelFailed,
    places: Mapping[Path, Path] = MappingProxyType({}),
    findings: Iterable[str] = (),
) -> InferenceError:
    """Return the error for a model that Triton could not load, for one of several reasons.

    `places` are the authors' folders, by their places in Triton's repository.
    """
    said = error.message
    for place, folder in places.items():
        said = said.replace(str(place), str(folder))
    message = f"{what} cannot be loaded: {said}"
    if isinstance(error, TooLargeAtOnce):
        hint = "unload another model first, or start the container with more /dev/shm"
        return OutOfMemory(message, hint=hint)
    if "explicit model load" in error.message:
        return BadModel(message, hint="start that Triton with --model-control-mode=explicit")
    return BadModel(message, hint="; ".join(findings) or error.hint)


def is_readable_folder(path: Path) -> bool:
    """Check whether a path, which may be any text, is that of a readable folder."""
    try:
        may = os.access(path, os.R_OK | os.X_OK, effective_ids=True)
        return path.is_absolute() and path.is_dir() and may
    except (OSError, ValueError):  # too long; NUL, or half of a surrogate pair
        return False


def find_model(folder: Path) -> Path:
    """Return the model's own folder: this one, or the only folder in it.

    Raises BadModel: it is neither a Triton model folder nor one with a plain model file.
    """
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and not is_litter(path)]
    is_alone = (folder / CONFIG).exists() or (folder / CLIENT_FILE).exists()
    for candidate in (folder, *inner[:1]):
        plain = any((candidate / name).is_file() for name in PLAIN_MODELS)
        if has_versions(candidate) or plain or is_its_own_version(candidate):
            return candidate
        if len(inner) != 1 or is_alone:
            break
    if not is_alone and len(several := [one.name for one in inner if (one / CONFIG).exists()]) > 1:
        raise BadModel(
            f"{folder} has several models ({', '.join(several)})",
            hint="load each by a request of its own, the steps of an ensemble before it",
        )
    raise NoModel(f"{folder} is no model", hint=f"expected {EXPECTED_FILES}")
