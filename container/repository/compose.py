"""Link the models of several folders into the one repository of Triton.

Models are loaded at run time by adding a folder there, and folders that cannot be written to are
left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clients.repository.model_folders import available, link, unservable


def compose(
    repository: Path,
    mounted: Path | None,
    built_in: Path,
    *,
    instead: bool,
    say: Callable[[str], None],
) -> tuple[str, ...]:
    """Fill `repository` with links to model folders; return the models' names.

    Models in `mounted` come first; with `instead` they leave out those in `built_in`.
    """
    repository.mkdir()
    found = available(mounted, built_in, instead=instead, say=say)
    for name, folder in list(found.items()):
        if reason := unservable(name, folder):
            say(f"{found.pop(name)} is not served: {reason}")
    for name, folder in found.items():
        link(folder, repository / name)
    return tuple(sorted(found))
