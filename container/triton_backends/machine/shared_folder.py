"""The folder that all model instances of one container share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "MODEL_INSTANCES_DIR"
"""What `serve` names it in; without it each instance is by itself."""


def shared_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder, if there is one."""
    folder = environment.get(VARIABLE)
    return Path(folder) if folder else None
