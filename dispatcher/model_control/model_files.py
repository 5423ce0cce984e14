"""Finds and checks a model's files, before Triton reads them.

A folder that `POST /models` names has one model, or an ensemble with its steps, or a Python model
with those that its code asks (business logic scripting).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from clients.errors import InferenceError, ModelFailed, TooLargeAtOnce
from clients.plugins.dispatch_toml import FILE as CLIENT_FILE
from clients.repository.config_text import Field, NotReadable, line_of, read
from clients.repository.files import is_litter, text_of
from clients.repository.model_folders import CONFIG, PLAIN_MODELS, has_versions
from dispatcher.errors import BadModel, OutOfMemory

EXPECTED_FILES = "config.pbtxt and 1/model.onnx, or a plain model.onnx"
MAX_CODE = 2**20  # bytes of a file in which names of models are looked for
MAX_CLIENT_FILE = 2**20  # bytes of a dispatch.toml


def read_client_file(path: Path) -> bytes:
    """Return the content of a `dispatch.toml`, to be copied.

    Raises:
        BadModel: it is too large to be one.

    """
    with path.open("rb") as file:
        content = file.read(MAX_CLIENT_FILE + 1)
    if len(content) > MAX_CLIENT_FILE:
        raise BadModel(f"{path} has more than {MAX_CLIENT_FILE // 2**20} MiB")
    return content


def read_config(folder: Path) -> str:
    """Return the text of a model's configuration.

    Raises:
        BadModel: it is not UTF-8.

    """
    config = folder / CONFIG
    try:
        return text_of(config)
    except UnicodeDecodeError as error:
        raise BadModel(f"{config} is not UTF-8: {error}", hint="save it as UTF-8") from error


def refuse_other_name(text: str, name: str) -> None:
    """Refuse a configuration whose `name` is not its folder's, as in a copied folder.

    Raises:
        ModelFailed: the names differ.

    """
    with suppress(NotReadable):  # Triton's parser reads some of what this one does not
        for field in read(text).all("name"):
            if field.value != name:
                raise ModelFailed(
                    f'{CONFIG}:{line_of(text, field)}: `name` is "{field.value}", but the '
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


def load_error(what: str, error: ModelFailed) -> InferenceError:
    """Return the error for a model that Triton could not load."""
    message = f"{what} cannot be loaded: {error.message}"
    if isinstance(error, TooLargeAtOnce):
        hint = "unload another model first, or start the container with more /dev/shm"
        return OutOfMemory(message, hint=hint)
    if "explicit model load" in error.message:
        return BadModel(message, hint="start that Triton with --model-control-mode=explicit")
    return BadModel(message, hint=error.hint)


def is_readable_folder(path: Path) -> bool:
    """Check whether a path, which may be any text, is that of a readable folder."""
    try:
        may = os.access(path, os.R_OK | os.X_OK, effective_ids=True)
        return path.is_absolute() and path.is_dir() and may
    except (OSError, ValueError):  # too long; NUL, or half of a surrogate pair
        return False


@dataclass(frozen=True)
class ModelFolders:
    """The folder of a model, and those of its parts.

    Args:
        main: of the model that callers ask.
        parts: of the other models, by their names there.
        called: the parts that code asks by these names.

    """

    main: Path
    parts: Mapping[str, Path] = field(default_factory=dict)
    called: frozenset[str] = frozenset()

    def names(self, name: str) -> dict[str, str]:
        """Return under which name each part is loaded, where the model itself is `name`.

        Steps of an ensemble get names of their own, which its configuration can be changed to: two
        folders may have steps of the same names. What code says stays as it is.
        """
        return {part: part if part in self.called else f"{name}.{part}" for part in self.parts}


def find_models(folder: Path) -> ModelFolders:
    """Return the model's own folder: this one, the only folder in it, or the one with parts.

    Raises:
        BadModel: it is neither a Triton model folder nor one with a plain model file, or has
            several models that do not belong together.

    """
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and not is_litter(path)]
    is_alone = (folder / CONFIG).exists() or (folder / CLIENT_FILE).exists()
    for candidate in (folder, *inner[:1]):
        plain = any((candidate / name).is_file() for name in PLAIN_MODELS)
        if has_versions(candidate) or plain:
            return ModelFolders(candidate)
        if len(inner) != 1 or is_alone:
            break
    models = {path.name: path for path in inner if (path / CONFIG).is_file()}
    if len(models) > 1 and not is_alone:
        return with_parts(folder, models)
    raise BadModel(f"{folder} is no model", hint=f"expected {EXPECTED_FILES}")


def with_parts(folder: Path, models: Mapping[str, Path]) -> ModelFolders:
    """Return which of several models is made of the others.

    Raises:
        BadModel: there is not exactly one.

    """
    steps = {step.value for path in models.values() for step in steps_of(config_text(path))}
    called = frozenset(
        name
        for name in models
        if any(is_named(name, path) for other, path in models.items() if other != name)
    )
    mains = models.keys() - steps - called
    if len(mains) != 1:
        raise BadModel(
            f"{folder} has several models ({', '.join(models)}), and "
            f"{'none' if not mains else ' and '.join(sorted(mains))} of them asks all others",
            hint="expected one ensemble and its steps, or one Python model and those that its code "
            "names; load other models by a request each",
        )
    (main,) = mains
    parts = {name: path for name, path in models.items() if name != main}
    return ModelFolders(models[main], parts, called)


def is_named(name: str, folder: Path) -> bool:
    """Check whether the code of a model has another one's name in quotation marks."""
    quoted = re.compile(rf"""(["']){re.escape(name)}\1""")
    return any(
        quoted.search(path.read_text(errors="replace"))
        for path in folder.glob("*/*.py")
        if path.is_file() and path.stat().st_size <= MAX_CODE
    )


def config_text(folder: Path) -> str:
    """Return a configuration's text; empty where it cannot be read, which Triton reports."""
    with suppress(OSError, UnicodeDecodeError):
        return text_of(folder / CONFIG)
    return ""


def steps_of(text: str) -> Iterator[Field]:
    """Yield the fields in which an ensemble's configuration names its steps."""
    with suppress(NotReadable):
        for scheduling in read(text).messages("ensemble_scheduling"):
            for step in scheduling.messages("step"):
                yield from step.all("model_name")


def with_step_names(text: str, names: Mapping[str, str]) -> str:
    """Return a configuration with other names for the steps of an ensemble."""
    for step in sorted(steps_of(text), key=lambda step: step.start, reverse=True):
        if isinstance(step.value, str) and (name := names.get(step.value)):
            text = f'{text[: step.start]}model_name: "{name}"{text[step.end :]}'
    return text
