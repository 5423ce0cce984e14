"""Write files in a folder beside their place, and move them there when all are whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def beside(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of `root`, in which all is written before it is moved there."""
    nearest = next(one for one in (root.absolute(), *root.absolute().parents) if one.is_dir())
    with tempfile.TemporaryDirectory(prefix=".dispatcher-", dir=nearest) as place:
        yield Path(place)


def put(place: Path, root: Path, paths: Sequence[Path]) -> None:
    """Move what was written at `place` to where it belongs below `root`: all of it, or nothing."""
    with ExitStack() as undo:
        for path in paths:
            parents = (root / path).parents
            for folder in reversed([one for one in parents if not one.exists()]):
                folder.mkdir()
                undo.callback(folder.rmdir)
        for path in paths:
            (place / path).rename(root / path)
            undo.callback((root / path).rename, place / path)
        undo.pop_all()
