"""Look for mistakes in a model's versions: folders, policy and files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from backends.openvino.session import DEFAULT_FILES as OPENVINO_FILES
from clients.model_files.config_text import Message, parse_integer
from clients.model_files.files import exists, is_litter
from clients.model_files.findings import Findings
from clients.model_files.model_folders import CONFIG, MODEL_FILES, PLAIN_MODELS, is_its_own_version
from container.model_check.file import FileCheck

VERSION = re.compile(r"0|[1-9][0-9]*")
FROM_PYTORCH = "build on that image, or export it: torch.onnx.export(model, inputs, 'model.onnx')"
FROM_ONNX = "build on that image, or serve the ONNX file that it was made from"
OF_NVIDIA = {
    "model.plan": "TensorRT",
    "model.pt": "PyTorch",
    "model.savedmodel": "TensorFlow",
    "model.graphdef": "TensorFlow",
}


@dataclass(frozen=True)
class VersionCheck:
    """Checks the versions of one model folder."""

    folder: Path
    findings: Findings
    files: FileCheck

    def run(self, message: Message, text: str) -> None:
        """Look for the model's file in each version that is served."""
        versions = version_folders(self.folder)
        free = max((int(path.name) for path in versions), default=0) + 1
        for path in folders(self.folder):
            if path not in versions and (path.name.isdigit() or looks_like_a_version(path.name)):
                self.findings.error(
                    path,
                    "is no version: Triton passes over what is no number, or begins with a zero",
                    f"rename it to {free}",
                )
            elif path.name == "0":
                self.findings.warning(
                    path,
                    "cannot be asked for by its number: callers name versions from 1",
                    f"rename it to {free}, unless no caller names it",
                )
        backend = message.text("backend") or message.text("platform")
        wanted = message.text("default_model_filename") or MODEL_FILES.get(backend, "")
        is_ensemble = message.text("platform") == "ensemble"
        plain = is_its_own_version(self.folder) or is_plain(self.folder)
        if not (versions or plain):
            self.findings.error(
                self.folder,
                "has no version folder",
                f"put the model's file into {self.folder.name}/1/",
            )
        if is_ensemble:
            return
        for version in find_served(message, versions) or [self.folder] * (plain and not versions):
            self.version(version, wanted, text, message)

    def version(self, version: Path, wanted: str, text: str, message: Message) -> None:
        """Look for the model's file in one version, and into it."""
        if not wanted:  # Triton finds the backend by the name of the file
            wanted = next(
                (n for n in dict.fromkeys(MODEL_FILES.values()) if (version / n).exists()), ""
            )
        file = version / wanted
        names = OPENVINO_FILES if wanted == OPENVINO_FILES[0] else (wanted,)
        if not exists(file) and (others := [name for name in names if exists(version / name)]):
            file = version / others[0]
            self.findings.warning(
                self.folder / CONFIG,
                f"names no file, for which NVIDIA's image takes {wanted} alone",
                f'write default_model_filename: "{file.name}"',
            )
        if not wanted or not exists(file):
            there = sorted(path.name for path in version.iterdir() if path.name != CONFIG)
            what = " or ".join(names if wanted else dict.fromkeys(MODEL_FILES.values()))
            suffixes = {Path(name).suffix: name for name in names}
            alike = [name for name in there if Path(name).suffix in suffixes]
            self.findings.error(
                version,
                f"has no {what}" + (f"; it has {', '.join(there[:5])}" if there else ""),
                f"rename {alike[0]} to {suffixes[Path(alike[0]).suffix]}, or name it with "
                "default_model_filename"
                if wanted and alike
                else "put the model's file there",
            )
            return
        if OF_NVIDIA.get(wanted) and not (message.text("backend") or message.text("platform")):
            self.findings.warning(
                file,
                f"is for {OF_NVIDIA[wanted]}, which only NVIDIA's image of Triton can run",
                FROM_PYTORCH if wanted == "model.pt" else FROM_ONNX,
            )
        if file.is_file():
            self.files.contents(file, text)


def is_plain(folder: Path) -> bool:
    """Whether a folder has a model's file where no configuration has to name it."""
    return any((folder / name).is_file() for name in PLAIN_MODELS)


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


def looks_like_a_version(name: str) -> bool:
    """Whether a folder seems to be meant as one, such as `v1`, `version_2` or `1.0`."""
    letters = name.lower().strip("0123456789._-")
    return letters in {"", "v", "ver", "version"} and any(one.isdigit() for one in name)
