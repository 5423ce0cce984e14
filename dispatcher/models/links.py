"""Keeps Triton's list of models complete when a model's folder is deleted.

The repository has links to the models' own folders. Where one of them is broken, Triton lists no
models at all, and cannot load or unload any. It takes an empty folder for a model without files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from dispatcher.settings import ASIDE, Settings


def link_repair(settings: Settings) -> Callable[[], None]:
    """Return a function that repairs links to deleted folders."""
    if settings.run_dir is None or settings.triton_url:  # the folder is the user's own
        return lambda: None
    return partial(keep_listable, settings.model_repository, settings.run_dir / ASIDE)


def keep_listable(repository: Path, aside: Path) -> None:
    """Replace each broken link by an empty folder, until its target exists again."""
    for link in aside.iterdir():
        with suppress(OSError):  # another web worker was faster
            if link.exists():
                (repository / link.name).rmdir()
                link.rename(repository / link.name)
    for link in repository.iterdir():
        with suppress(OSError):
            if link.is_symlink() and not link.exists():
                link.rename(aside / link.name)
                link.mkdir()
