"""The settings of which models are loaded, and when; a part of the one table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from dispatcher.settings import readers as read
from dispatcher.settings.readers import setting

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which models are loaded at the start, which at their first request, and how many."""

    # fmt: off
    repositories: tuple[Path | str, ...] = setting("MODEL_REPOSITORY",
        str(PROJECT / "model_repository"), read.repositories,
        "Triton's model repositories; the first wins for equal names")
    required_models: tuple[str, ...] = setting("REQUIRED_MODELS", "", read.names,
        "models or classes without which /ping is 503, if not every model")
    load_on_demand: bool = setting("LOAD_ON_DEMAND", "false", read.truth,
        "load each model at its first request, but for PINNED_MODELS and REQUIRED_MODELS")
    model_memory_mb: int | None = setting("MODEL_MEMORY_MB", "",
        read.or_nothing(read.whole(1, 2**30)),
        "MiB for models on demand; the least recently used are unloaded")
    model_idle: float | None = setting("MODEL_IDLE_TIMEOUT", "",
        read.or_nothing(read.seconds(1, 31_536_000)),
        "seconds without a request after which LOAD_ON_DEMAND unloads")
    pinned_models: tuple[str, ...] = setting("PINNED_MODELS", "", read.names,
        "models that LOAD_ON_DEMAND loads at the start and keeps, like REQUIRED_MODELS")
    model_cache: Path = setting("MODEL_CACHE", str(Path(sys.prefix) / "models"), read.path,
        "folder for copies of models in S3, for this container alone")
    model_cache_mb: int = setting("MODEL_CACHE_MB", "20480", read.whole(1, 2**30),
        "its size, in MiB")
    # fmt: on

    @property
    def model_repository(self) -> Path:
        """The folder that Triton reads, for the programs that `serve` starts."""
        return self.folders[0]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of MODEL_REPOSITORY that are on disk."""
        return tuple(one for one in self.repositories if isinstance(one, Path))

    @property
    def models_at_start(self) -> tuple[str, ...]:
        """The models that LOAD_ON_DEMAND loads at the start."""
        return (*self.pinned_models, *self.required_models)

    @property
    def fault(self) -> str:
        """What is wrong with these settings together; else empty."""
        for variable, value in (
            ("MODEL_MEMORY_MB", self.model_memory_mb),
            ("MODEL_IDLE_TIMEOUT", self.model_idle),
        ):
            if value is not None and not self.load_on_demand:
                return (
                    f"{variable} is '{value:g}' and LOAD_ON_DEMAND is 'false'; expected: "
                    "LOAD_ON_DEMAND=true, without which an unloaded model would stay so"
                )
        return ""
