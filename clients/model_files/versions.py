"""The versions in a model's folder, and which of them Triton serves."""

from __future__ import annotations

import re
from pathlib import Path

from clients.model_files.config_text import Message, parse_integer
from clients.model_files.files import is_litter

VERSION = re.compile(r"0|[1-9][0-9]*")


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
