"""What every client is made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clients.triton.server import Inference

if TYPE_CHECKING:
    from clients.base import Client


@dataclass
class Others:
    """The clients of other models, which a class asks by `Client.ask`.

    `find` returns the client of a model or alias, and loads the model until a deadline by
    `time.monotonic()`; it raises UnknownModel, ModelUnavailable and so on. It is set when all
    clients were made, since they are made with this.
    """

    find: Callable[[str, float], Client] = field(init=False)


@dataclass(frozen=True)
class Environment:
    """What every client is made with."""

    server: Inference  # runs the models
    model_repository: Path  # with one folder per model
    max_pixels: int = 50_000_000  # of the largest picture that is decoded
    others: Others = field(default_factory=Others, kw_only=True)
