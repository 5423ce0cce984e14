"""Triton's `pytorch` backend in Python, for TorchScript models.

A model's configuration means here what it means to NVIDIA's native backend. Triton loads this
file by its path and starts one process of it for each model instance.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from backends.model_config import ModelConfigError, read_kind
from backends.python_model import PythonModel
from backends.pytorch import torchscript, torchscript_settings
from backends.triton_requests import log_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.completion import ModelFile


class TritonPythonModel(PythonModel):
    """One model instance, as Triton's Python backend expects it."""

    @staticmethod
    def model_file(folder: Path, configured: str) -> Path:
        """Return the model's file in its version folder."""
        return folder / (configured or torchscript.DEFAULT_FILE)

    @staticmethod
    def read(file: Path) -> ModelFile:
        """Refuse a configuration without inputs or outputs: the file cannot complete it.

        Raises ModelConfigError: always.
        """
        raise ModelConfigError(
            f"the configuration has no input or no output, but '{file.name}', a TorchScript file, "
            "holds no shapes: config.pbtxt is expected to list every input and output."
        )

    def open(
        self, config: Mapping[str, Any], file: Path, args: Mapping[str, str]
    ) -> tuple[None, torchscript.TorchScriptModule]:
        """Load the module and match its arguments with the configuration."""
        log_warnings(config["name"], torchscript_settings.warn_of_unread(config))
        return None, torchscript.TorchScriptModule(
            file,
            torchscript_settings.read_signature(config),
            torchscript_settings.thread_counts(config),
            read_kind(args["model_instance_kind"], self.folder()),
            int(args["model_instance_device_id"]),
        )
