"""Look for mistakes in a model's versions: folders, policy and files."""

from __future__ import annotations

from pathlib import Path

from clients.model_files.config_text import Message
from clients.model_files.files import exists
from clients.model_files.model_folders import (
    CONFIG,
    MODEL_FILES,
    PLAIN_MODELS,
    TO_ONNX,
    find_served,
    folders,
    is_its_own_version,
    version_folders,
)
from container.model_check.file import check_file
from container.model_check.findings import ConfigFindings

OF_NVIDIA = {
    "model.plan": "TensorRT",
    "model.pt": "PyTorch",
    "model.xml": "OpenVINO's own backend",
    "model.savedmodel": "TensorFlow",
    "model.graphdef": "TensorFlow",
}


def check_versions(config: ConfigFindings, message: Message) -> None:
    """Look for the model's file in each version that is served."""
    folder, findings = config.file.parent, config.findings
    versions = version_folders(folder)
    free = max((int(path.name) for path in versions), default=0) + 1
    for path in folders(folder):
        if path not in versions and (path.name.isdigit() or looks_like_a_version(path.name)):
            findings.error(
                path,
                "is no version: Triton passes over what is no number, or begins with a zero",
                f"rename it to {free}",
            )
    plain = is_its_own_version(folder) or any((folder / name).is_file() for name in PLAIN_MODELS)
    if not (versions or plain):
        fix = f"put the model's file into {folder.name}/1/"
        findings.error(folder, "has no version folder", fix)
    if message.text("platform") != "ensemble":
        for version in find_served(message, versions) or [folder] * (plain and not versions):
            check_version(config, message, version)


def check_version(config: ConfigFindings, message: Message, version: Path) -> None:
    """Look for the model's file in one version, and into it."""
    findings = config.findings
    backend = message.text("backend") or message.text("platform")
    usual = list(dict.fromkeys(MODEL_FILES.values()))  # by which Triton finds the backend
    wanted = message.text("default_model_filename") or MODEL_FILES.get(backend, "")
    wanted = wanted or next((name for name in usual if (version / name).exists()), "")
    names = [wanted] if wanted else usual
    file = version / wanted
    if not wanted or not exists(file):
        there = sorted(path.name for path in version.iterdir() if path.name != CONFIG)
        suffixes = {Path(name).suffix: name for name in names}
        alike = [name for name in there if wanted and Path(name).suffix in suffixes]
        findings.error(
            version,
            f"has no {' or '.join(names)}" + (f"; it has {', '.join(there[:5])}" if there else ""),
            f"rename {alike[0]} to {suffixes[Path(alike[0]).suffix]}, or name it with "
            "default_model_filename"
            if alike
            else "put the model's file there",
        )
        return
    if OF_NVIDIA.get(wanted) and not backend:
        fix = TO_ONNX.get(wanted, "serve the ONNX file that it was made from")
        findings.warning(
            file,
            f"is for {OF_NVIDIA[wanted]}, which only NVIDIA's image of Triton can run",
            f"build on that image, or {fix}",
        )
    if file.is_file():
        check_file(config, file)


def looks_like_a_version(name: str) -> bool:
    """Whether a folder seems to be meant as one, such as `v1`, `version_2` or `1.0`."""
    letters = name.lower().strip("0123456789._-")
    return letters in {"", "v", "ver", "version"} and any(one.isdigit() for one in name)
