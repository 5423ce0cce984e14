"""Fetches files of a Hugging Face repository with `huggingface_hub`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from container.image.weights.errors import SourceUnreachable


def snapshot(repository: str, revision: str, names: list[str]) -> Path:
    """Fetch the named files at `revision` and return the folder that holds them.

    The hub's own cache is used, so files that are there already are not fetched again. Raises
    SourceUnreachable when the hub cannot be reached or does not have the repository or revision.
    """
    try:
        hub = import_module("huggingface_hub")
    except ImportError as error:
        raise SourceUnreachable(
            "there is no huggingface_hub: install container/image/requirements/serve.txt"
        ) from error
    try:
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=names))
    except (OSError, ValueError, hub.errors.EntryNotFoundError) as error:
        # Every answer and network error of huggingface_hub is an OSError; a name that it takes
        # for no repository is a ValueError.
        raise SourceUnreachable(str(error).splitlines()[0]) from error
