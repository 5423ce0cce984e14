"""What has changed in the folder that an author works on: models, and client classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from clients.model_files.files import is_litter
from clients.model_files.model_folders import CONFIG, PLAIN_MODELS, can_be_read, models_in

State: TypeAlias = Mapping[Path, tuple[int, int, int]]
"""What shows that a file is another: its number on the disk, its time and its size."""

UNFINISHED = (".part", ".tmp", ".swp", "~")  # what editors and downloads leave for a moment


@dataclass(frozen=True)
class Look:
    """The folder at one time."""

    models: Mapping[str, State]  # the files of each model, by its name
    classes: State  # the files in the folders of client classes


@dataclass(frozen=True)
class Changes:
    """What is to be loaded again."""

    engines: tuple[str, ...] = ()  # models that are new, or whose files for Triton are others
    described: tuple[str, ...] = ()  # others have changed, such as `dispatch.toml` or labels
    gone: tuple[str, ...] = ()
    classes: bool = False
    files: tuple[Path, ...] = ()  # that are new, changed or gone

    def __bool__(self) -> bool:
        return bool(self.files or self.gone)


def look(folder: Path, classes: Sequence[Path]) -> Look:
    """Look at the files of a folder of models, and at those of folders of classes."""
    try:
        found = dict(models_in(folder)) if folder.is_dir() else {}
    except OSError:  # a folder is being moved
        found = {}
    own = [one for one in classes if can_be_read(one)]
    return Look(
        {name: state(files_in(path)) for name, path in found.items()},
        state(file for one in own for file in files_in(one)),
    )


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, but none that systems and editors leave."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_litter(Path(name))]
        for name in names:
            if not is_litter(Path(name)) and not name.endswith(UNFINISHED):
                yield Path(place, name)


def state(files: Iterator[Path]) -> State:
    found = {}
    for path in files:
        try:
            status = path.stat()
        except OSError:  # it was removed meanwhile
            continue
        found[path] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def changes(before: Look, now: Look) -> Changes:
    engines, described, files = [], [], []
    for name, after in sorted(now.models.items()):
        differ = differences(before.models.get(name, {}), after)
        files += differ
        if name not in before.models or any(map(is_engine_s, differ)):
            engines.append(name)
        elif differ:
            described.append(name)
    differ = differences(before.classes, now.classes)
    gone = before.models.keys() - now.models.keys()
    files += [path for name in gone for path in before.models[name]]
    return Changes(
        tuple(engines),
        tuple(described),
        tuple(sorted(gone)),
        bool(differ),
        tuple(sorted({*files, *differ})),
    )


def differences(before: State, now: State) -> list[Path]:
    return [path for path in {*before, *now} if before.get(path) != now.get(path)]


def is_engine_s(path: Path) -> bool:
    """Whether Triton reads a file: the configuration, or one of a version."""
    return path.name in {CONFIG, *PLAIN_MODELS} or any(one.name.isdigit() for one in path.parents)
