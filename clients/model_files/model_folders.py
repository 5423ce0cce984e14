"""Finds the folders that are models, and their versions, checks their names, and links to them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from clients.model_files.config_text import Message, parse_integer, read, read_folder
from clients.model_files.crash_causes import crash_causes
from clients.model_files.files import (
    exists,
    explain_denial,
    is_file,
    is_litter,
    strip_mark,
    text_of,
)
from clients.model_files.response_cache import without_mixing_cache

CONFIG = "config.pbtxt"
PLAIN_MODELS = ("model.onnx", "model.pt")
# What a backend looks for in a version folder, where the configuration names nothing else.
# https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
MODEL_FILES = {
    "onnxruntime": "model.onnx",
    "pytorch": "model.pt",
    "python": "model.py",
    "tensorrt": "model.plan",
    "openvino": "model.xml",
    "onnxruntime_onnx": "model.onnx",
    "pytorch_libtorch": "model.pt",
    "tensorrt_plan": "model.plan",
    "tensorflow_savedmodel": "model.savedmodel",
    "tensorflow_graphdef": "model.graphdef",
}
TO_ONNX = {
    "model.pt": "export the model: torch.onnx.export(model, inputs, 'model.onnx')",
    "model.xml": 'serve the ONNX file that it was made from with backend: "onnxruntime", which '
    "OpenVINO runs where it is faster",
}
"""What to do, without NVIDIA's image, with files for which only that has a backend."""
UNNAMED = "model"  # the name for a model file directly in the mounted folder

# The one rule for names of models and aliases: no other folder is found by Triton's Python backend,
# none of these characters is special to a shell, no name is a path, and a folder's name has at most
# 255 bytes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
NAMED = (
    "expected a name of letters, digits, '_', '.', '+' and '-', at most 255 of them, that begins "
    "with a letter, a digit or '_'"
)

VERSION = re.compile(r"0|[1-9][0-9]*")

# Triton's name for a model's folder, at the beginning of a path that leads out of it.
BESIDE = re.compile(r"""\$\$TRITON_MODEL_DIRECTORY(?=(?:/[^"'\s]*)?/\.\.["'/])""")


def can_be_read(folder: Path) -> bool:
    """Whether a folder can be listed and entered, unlike `lost+found` on a volume."""
    effective = os.access in os.supports_effective_ids  # not on Windows
    return os.access(f"{folder}/.", os.R_OK | os.X_OK, effective_ids=effective)


def available(
    mounted: Path | None,
    *built_in: Path,
    instead: bool,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Path]:
    """Return the folders of all models, by name."""
    found: dict[str, Path] = {}
    if mounted is not None and mounted.is_dir():
        found.update(models_in(mounted, say))
        say(f"models in {mounted}: {', '.join(sorted(found)) or 'none'}")
    first = dict.fromkeys(found, mounted)
    for place in () if found and instead else built_in:
        for name, folder in models_in(place, say):
            if name in found:
                say(f"the model {name!r} of {first[name]} is served in place of the one in {place}")
            first.setdefault(name, place)
            found.setdefault(name, folder)
    return found


def link(folder: Path, place: Path) -> None:
    """Link a model's folder; or its content, if Triton cannot read the folder itself.

    That is so for a model file without a version folder, and for a `config.pbtxt` with a byte order
    mark, an environment outside of the folder, or a cache that mixes up shapes.
    """
    versions, text = has_versions(folder), adapt_text(folder)
    if versions and text is None:
        place.symlink_to(folder)
        return
    place.mkdir()
    if not versions:
        (place / "1").symlink_to(folder)
    for path in folder.iterdir():  # such as files that its client reads
        if text is not None and path.name == CONFIG:
            (place / CONFIG).write_text(text, encoding="utf-8")
        elif path.name not in PLAIN_MODELS:
            (place / path.name).symlink_to(path)


def authors_folder(place: Path) -> Path:
    """Return the folder that `link` has linked at a place, or the place itself."""
    links = [place] if place.is_symlink() else [p for p in place.glob("*") if p.is_symlink()]
    for one in links:
        target = one.readlink()
        # A folder without versions is linked as its version 1, and may have the name "1" itself.
        is_inside = target.name == one.name and (
            one.name != "1" or (target.parent / CONFIG).exists()
        )
        return (target.parent if one != place and is_inside else target).resolve()
    return place.resolve()


def read_links(place: Path) -> object:
    """Return the links and files that `link` made at a place; `None` if it made none.

    Two results are equal if they link the same folder in the same state.
    """
    try:
        if place.is_symlink():
            return place.readlink()
        return {p.name: p.readlink() if p.is_symlink() else p.read_bytes() for p in place.iterdir()}
    except OSError:  # there is no such folder, or it is a model's own folder
        return None


def adapt_text(folder: Path) -> str | None:
    """Return the configuration that Triton gets in place of the author's; `None` if it reads that.

    Triton refuses a byte order mark.
    """
    try:
        content = (folder / CONFIG).read_bytes()
        text = text_for_triton(strip_mark(content).decode(), folder)
        return text if text.encode() != content else None
    except (OSError, UnicodeDecodeError):  # there is none, or Triton refuses it
        return None


def text_for_triton(text: str, folder: Path) -> str:
    """Return a configuration as Triton gets it; `folder` is the author's.

    Triton takes `$$TRITON_MODEL_DIRECTORY/../env.tar.gz` from the folder of links.
    """
    return BESIDE.sub(lambda _: str(folder.resolve()), without_mixing_cache(text))


def unservable(name: str, folder: Path) -> str:
    """Return why a model must not be given to Triton; empty if it may be."""
    return "; ".join(map(str, crash_causes(folder))) if NAME.fullmatch(name) else NAMED


def find_misplaced_configs(folder: Path) -> list[Path]:
    """Return the configurations in version folders, where Triton does not read them."""
    return [path / CONFIG for path in folders(folder) if (path / CONFIG).is_file()]


def models_in(
    folder: Path, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each model in a folder, or of the folder itself."""
    if is_model(folder):
        name = read_folder(folder).text("name")
        yield name if NAME.fullmatch(name) else UNNAMED, folder
        return
    if any((folder / name).is_file() for name in PLAIN_MODELS):
        yield UNNAMED, folder
    for path in sorted(folder.iterdir()):
        if is_litter(path):
            continue
        if not can_be_read(path):
            if not is_file(path):
                say(f"{path} is not served: it cannot be read{explain_denial(path)}")
            continue
        if is_model(path) or any((path / name).is_file() for name in PLAIN_MODELS):
            yield path.name, path


def is_model(folder: Path) -> bool:
    """Whether a folder has a configuration or version folders."""
    return can_be_read(folder) and ((folder / CONFIG).is_file() or has_versions(folder))


def has_versions(folder: Path) -> bool:
    return any(path.name.isdigit() and path.is_dir() for path in folder.iterdir())


def is_its_own_version(folder: Path) -> bool:
    """Whether a folder without version folders has a model's file beside its configuration.

    The folder itself is then version 1. An ensemble has no file.
    """
    try:
        config = read(text_of(folder / CONFIG))
    except (OSError, ValueError):  # there is none, or Triton reports the mistake
        return False
    if config.text("platform") == "ensemble":
        return True
    named = config.text("default_model_filename")
    names = [named] if named else MODEL_FILES.values()
    return any(exists(folder / name) for name in names)


def folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_litter(path))


def version_folders(folder: Path) -> list[Path]:
    """Return the folders of a model that Triton takes for its versions."""
    return [path for path in folders(folder) if VERSION.fullmatch(path.name)]


def find_served(message: Message, versions: list[Path]) -> list[Path]:
    """Return the versions that Triton serves: the latest, where there is no policy."""
    versions = sorted(versions, key=lambda path: int(path.name))
    count = 1
    for policy in message.messages("version_policy"):
        if policy.all("all"):
            return versions
        for specific in policy.messages("specific"):
            wanted = {parse_integer(version) for version in specific.texts("versions")}
            return [path for path in versions if int(path.name) in wanted]
        for latest in policy.messages("latest"):
            count = latest.readable_number("num_versions")
    return versions[-count:] if count > 0 else []
