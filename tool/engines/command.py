"""`dispatcher engines`: which engine runs each model on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from backends import engine_choice
from backends.model_config import ModelConfigError
from backends.onnxruntime.session import model_file
from clients.model_files.config_text import read
from clients.model_files.files import text_of
from clients.model_files.model_folders import CONFIG, find_served, version_folders
from clients.triton.configuration import config_dictionary, config_fault
from container.model_check.file import is_onnx
from container.trouble import Trouble
from tool.engines.offline import compose_links, settings_here

LIMIT_S = 3600.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which engine runs each model on this machine, in which precision, how fast, and how "
        "far its answers are from ONNX Runtime's in f32. What has been found is kept in "
        "ENGINE_CACHE, where a start finds it. Classes of clients are imported for it."
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="default: all of them")
    parser.add_argument(
        "--precision",
        choices=(engine_choice.EXACT, engine_choice.AUTO),
        help="instead of MODEL_PRECISION, for models whose configuration says nothing",
    )


def run(options: argparse.Namespace) -> int:
    """Select the engines and print them; return the exit code."""
    settings = settings_here()
    environment = {
        **os.environ,
        engine_choice.PRECISION_VARIABLE: options.precision or settings.model_precision,
        engine_choice.CACHE_VARIABLE: str(settings.engine_cache),
        engine_choice.LIMIT_VARIABLE: str(LIMIT_S),
    }
    with compose_links(settings) as repository:
        folders = {path.name: path for path in sorted(repository.iterdir()) if path.is_dir()}
        if unknown := [name for name in options.models if name not in folders]:
            there = ", ".join(folders) or "none"
            raise Trouble(f"there is no model {unknown[0]!r}; there are: {there}")
        for name in options.models or folders:
            sys.stdout.write(f"{name}: {describe_choice(folders[name], environment)}\n")
            sys.stdout.flush()
    return 0


def describe_choice(folder: Path, environment: Mapping[str, str]) -> str:
    """Return which engine runs the latest version of a model, in words."""
    try:
        text = text_of(folder / CONFIG) if (folder / CONFIG).is_file() else ""
        message = read("x" if config_fault(text) else text)
    except (OSError, ValueError):
        return f"its {CONFIG} cannot be read; `dispatcher check` says why"
    config = config_dictionary(text)
    versions = find_served(message, version_folders(folder))
    if not (is_onnx(message, versions) and versions):
        return "no model of ONNX"
    try:
        file = model_file(versions[-1], message.text("default_model_filename"))
        return engine_choice.choice_for_onnxruntime(config, folder, file, environment).sentence()
    except ModelConfigError as error:
        return str(error)
