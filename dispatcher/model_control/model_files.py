"""Checks of a model's files, before Triton reads them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from clients.errors import InferenceError, ModelFailed, TooLargeAtOnce
from clients.plugins.dispatch_toml import FILE as CLIENT_FILE
from clients.repository.config_text import NotReadable, line_of, read
from clients.repository.files import is_litter, text_of
from clients.repository.model_folders import CONFIG, PLAIN_MODELS, has_versions
from dispatcher.errors import BadModel, OutOfMemory

EXPECTED_FILES = "config.pbtxt and 1/model.onnx, or a plain model.onnx"
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
    return BadModel(message, hint=error.hint)


def is_readable_folder(path: Path) -> bool:
    """Check whether a path, which may be any text, is that of a readable folder."""
    try:
        may = os.access(path, os.R_OK | os.X_OK, effective_ids=True)
        return path.is_absolute() and path.is_dir() and may
    except (OSError, ValueError):  # too long; NUL, or half of a surrogate pair
        return False


def find_model_folder(folder: Path) -> Path:
    """Return the model's own folder: this one, or the only folder in it.

    Raises:
        BadModel: it is neither a Triton model folder nor one with a plain model file.

    """
    inner = [path for path in folder.iterdir() if path.is_dir() and not is_litter(path)]
    for candidate in (folder, *inner[:1]):
        plain = any((candidate / name).is_file() for name in PLAIN_MODELS)
        if has_versions(candidate) or plain:
            return candidate
        if len(inner) != 1 or (folder / CONFIG).exists() or (folder / CLIENT_FILE).exists():
            break
    raise BadModel(f"{folder} is no model", hint=f"expected {EXPECTED_FILES}")
