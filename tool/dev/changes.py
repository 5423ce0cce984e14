"""What has changed in the folder that an author works on: models, and client classes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.files import Mark, is_litter, mark_files
from clients.model_files.model_folders import CONFIG, PLAIN_MODELS, can_be_read, models_in

UNFINISHED = (".part", ".tmp", ".swp", "~")  # what editors and downloads leave for a moment


@dataclass(frozen=True)
class Look:
    """The folder at one time."""

    models: Mapping[str, Mark]  # the files of each model, by its name
    classes: Mark  # the files in the folders of client classes


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
        {name: mark_files(files_in(path)) for name, path in found.items()},
        mark_files(file for one in own for file in files_in(one)),
    )


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, but none that systems and editors leave."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_litter(Path(name))]
        for name in names:
            if not is_litter(Path(name)) and not name.endswith(UNFINISHED):
                yield Path(place, name)


def changes(before: Look, now: Look) -> Changes:
    engines, described, files = [], [], list[Path]()
    for name, after in sorted(now.models.items()):
        differ = differences(before.models.get(name, {}), after)
        files += differ
        if name not in before.models or any(map(is_engine_s, differ)):
            engines.append(name)
        elif differ:
            described.append(name)
    differ = differences(before.classes, now.classes)
    gone = before.models.keys() - now.models.keys()
    files += [Path(path) for name in gone for path in before.models[name]]
    return Changes(
        tuple(engines),
        tuple(described),
        tuple(sorted(gone)),
        bool(differ),
        tuple(sorted({*files, *differ})),
    )


def differences(before: Mark, now: Mark) -> list[Path]:
    return [Path(path) for path in {*before, *now} if before.get(path) != now.get(path)]


def is_engine_s(path: Path) -> bool:
    """Whether Triton reads a file: the configuration, or one of a version."""
    return path.name in {CONFIG, *PLAIN_MODELS} or any(one.name.isdigit() for one in path.parents)
