"""Finds the folders of MODEL_REPOSITORY, and fetches those in S3."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from clients.errors import InferenceError, UnknownModel
from clients.model_files.files import explain_denial
from dispatcher.s3.remote_models import RemoteModels, cache_of
from dispatcher.settings import MODELS, SettingError, Settings


def repository_folders(settings: Settings, run_dir: Path, say: Callable[[str], None]) -> list[Path]:
    """Return the folders of MODEL_REPOSITORY; fetch from S3 what is loaded at the start.

    Raises SettingError: S3 does not have it or does not give it, or there is no room for it.
    """
    (run_dir / MODELS).mkdir()
    folders, stores, cache = [], [], cache_of(settings, say)
    for number, one in enumerate(settings.repositories):
        place = run_dir / MODELS / str(number)
        if isinstance(one, Path):
            place.symlink_to(one)
        else:
            stores.append(RemoteModels.made(place, one, cache))
        folders.append(one if isinstance(one, Path) else place)
    if stores:
        keep_alone(settings.model_cache)
    for store in stores:
        try:
            if not (found := store.refresh()):
                raise UnknownModel(
                    "it has no models", hint="below the prefix each model has a folder, as on disk"
                )
            first = settings.required_models if settings.load_on_demand else found
            store.fetch_all([model for name, model in found.items() if name in first])
        except InferenceError as error:
            said = f"{store.source}: {error.message}; {error.hint}"
            raise SettingError(f"MODEL_REPOSITORY has {said}") from error
    return folders


def keep_alone(cache: Path) -> None:
    """Make the folder of MODEL_CACHE, and lock it until this process ends.

    Raises SettingError: it cannot be made, or another container uses it.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        fcntl.flock(os.open(cache, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        why = "another `serve` uses it" if error.errno == errno.EWOULDBLOCK else error.strerror
        mend = explain_denial(cache, os.W_OK) if isinstance(error, PermissionError) else ""
        raise SettingError(
            f"MODEL_CACHE is '{cache}': {why}; expected: a folder of this container's own that can "
            f"be written to{mend}"
        ) from error
