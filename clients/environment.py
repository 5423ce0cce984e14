"""What every client is made with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clients.triton.server import Inference


@dataclass(frozen=True)
class Environment:
    """What every client is made with.

    Args:
        server: runs the models.
        model_repository: the folder with one folder per model.
        max_pixels: the largest picture that is decoded, in pixels.

    """

    server: Inference
    model_repository: Path
    max_pixels: int = 50_000_000
