"""Which folders are models, what a model may be called, and how a repository links to one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from clients.repository.config_text import read
from clients.repository.crash_causes import deadly
from clients.repository.files import is_litter, text_of, unmarked

CONFIG = "config.pbtxt"
PLAIN_MODELS = ("model.onnx", "model.pt")
UNNAMED = "model"  # a plain model file that lies in the mounted folder by itself

# The one rule for the name of a model or an alias. Triton's Python finds no folder of another, a
# shell takes none of these apart, none is a path, and a folder's name has 255 bytes at most.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
NAMED = (
    "expected a name of letters, digits, '_', '.', '+' and '-', at most 255 of them, that begins "
    "with a letter, a digit or '_'"
)


def can_be_read(folder: Path) -> bool:
    """Whether it is a folder that may be looked into; `lost+found` on a volume may not."""
    return os.access(f"{folder}/.", os.R_OK | os.X_OK, effective_ids=True)


def available(
    mounted: Path | None,
    built_in: Path,
    *,
    instead: bool,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Path]:
    """Return the folders of the models that are there, by name.

    Args:
        mounted: models that come first; it need not exist.
        built_in: models that come after.
        instead: leave those out where there are mounted ones.
        say: takes a line for the operator.

    """
    found: dict[str, Path] = {}
    if mounted is not None and mounted.is_dir():
        found.update(models_in(mounted, say))
        say(f"models in {mounted}: {', '.join(sorted(found)) or 'none'}")
    if not (found and instead):
        for name, folder in models_in(built_in, say):
            if name in found:
                say(f"the model {name!r} of {mounted} is served in place of the one in {built_in}")
            found.setdefault(name, folder)
    return found


def link(folder: Path, place: Path) -> None:
    """Link a model's folder; or what lies in one that Triton does not take as it is.

    That has a plain model file in place of versions, or a configuration with a byte order mark.
    """
    versions, text = has_versions(folder), marked_text(folder / CONFIG)
    if versions and text is None:
        place.symlink_to(folder)
        return
    place.mkdir()
    if not versions:
        (place / "1").symlink_to(folder)
    for path in folder.iterdir():  # what its client reads besides
        if text is not None and path.name == CONFIG:
            (place / CONFIG).write_text(text, encoding="utf-8")
        elif path.name not in PLAIN_MODELS:
            (place / path.name).symlink_to(path)


def authors_folder(place: Path) -> Path:
    """Return the folder that `link` has linked at a place; the place where it has linked none."""
    links = [place] if place.is_symlink() else [p for p in place.glob("*") if p.is_symlink()]
    for one in links:
        target = one.readlink()
        # A folder without versions is linked as its own first, and may be called "1" itself.
        is_inside = target.name == one.name and (
            one.name != "1" or (target.parent / CONFIG).exists()
        )
        return (target.parent if one != place and is_inside else target).resolve()
    return place.resolve()


def linked_by(place: Path) -> object:
    """Return what `link` made: where each link leads, and what it wrote; `None` where it did not.

    Two are equal where they link the same folder in the same state.
    """
    try:
        if place.is_symlink():
            return place.readlink()
        return {p.name: p.readlink() if p.is_symlink() else p.read_bytes() for p in place.iterdir()}
    except OSError:  # there is no such folder, or it is a model's own
        return None


def marked_text(config: Path) -> str | None:
    """Return a configuration's text where its file is none to Triton, which takes plain UTF-8."""
    try:
        content = config.read_bytes()
        return unmarked(content).decode() if unmarked(content) != content else None
    except (OSError, UnicodeDecodeError):  # there is none, or Triton says what is wrong with it
        return None


def unservable(name: str, folder: Path) -> str:
    """Return why Triton must not be given a model; nothing where it may."""
    return "; ".join(map(str, deadly(folder))) if NAME.fullmatch(name) else NAMED


def models_in(
    folder: Path, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each model; of the folder itself where it is one."""
    if is_model(folder):
        yield configured_name(folder) or UNNAMED, folder
        return
    if any((folder / name).is_file() for name in PLAIN_MODELS):
        yield UNNAMED, folder
    for path in sorted(folder.iterdir()):
        if is_litter(path):
            continue
        if not can_be_read(path):
            if not os.path.isfile(path):  # noqa: PTH113  Path's raises where it may not look
                say(f"{path} is not served: it cannot be read")
            continue
        if is_model(path) or any((path / name).is_file() for name in PLAIN_MODELS):
            yield path.name, path


def is_model(folder: Path) -> bool:
    """Whether a folder is a model as Triton wants it: a configuration, or version folders."""
    return can_be_read(folder) and ((folder / CONFIG).is_file() or has_versions(folder))


def has_versions(folder: Path) -> bool:
    """Whether there are version folders in a model's folder."""
    return any(path.name.isdigit() and path.is_dir() for path in folder.iterdir())


def configured_name(folder: Path) -> str:
    """Return the name that a model's configuration gives it, as far as it is a plain one."""
    try:
        name = read(text_of(folder / CONFIG)).text("name")
    except (OSError, ValueError):  # its next reader says what is wrong with it
        return ""
    return name if NAME.fullmatch(name) else ""
