"""`dispatcher emulate` and `conformance`, which the package sagemaker-emulator brings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from container.trouble import Trouble
from dispatcher.settings import PROJECT

NAME = "sagemaker-emulator"


def main(arguments: Sequence[str]) -> int:
    """Run that package's command line; return its exit code."""
    for found in entry_points(group="console_scripts", name=NAME):
        return int(found.load()(arguments))
    folder = PROJECT / "emulator"
    raise Trouble(f"`pip install {folder if folder.is_dir() else NAME}` brings this command")
