"""Keeps Triton's list of models whole where somebody deletes the folder of one.

The repository has links to the models' own folders. Triton, which is asked for its list whenever a
model is loaded, unloaded or not known, lists none at all where one of them leads nowhere; an empty
folder it takes for a model whose files are gone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def keep_listable(repository: Path, aside: Path) -> None:
    """Put an empty folder in the place of each link that leads nowhere, until it leads somewhere.

    Args:
        repository: where the links are.
        aside: a folder for those that lead nowhere, on the same disk.

    """
    for link in aside.iterdir():
        with suppress(OSError):  # another web worker was sooner
            if link.exists():
                (repository / link.name).rmdir()
                link.rename(repository / link.name)
    for link in repository.iterdir():
        with suppress(OSError):
            if link.is_symlink() and not link.exists():
                link.rename(aside / link.name)
                link.mkdir()
