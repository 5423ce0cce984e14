"""Triton's `openvino` backend in Python, for a Triton without the native one.

It takes `model.xml` with `model.bin`, or `model.onnx`, and the parameters of NVIDIA's backend.
Triton loads this file by its path and starts one process of it for each model instance.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from backends.engine_choice import EngineChoice, choice_for_openvino
from backends.machine.shared_folder import find_shared_folder
from backends.model_config import ModelConfigError, read_kind
from backends.openvino import session
from backends.openvino.properties import properties
from backends.python_model import PythonModel

if TYPE_CHECKING:
    from collections.abc import Mapping


class TritonPythonModel(PythonModel):
    """One model instance, as Triton's Python backend expects it."""

    model_file = staticmethod(session.model_file)
    read = session.OpenVinoFile

    def open(
        self, config: Mapping[str, Any], file: Path, args: Mapping[str, str]
    ) -> tuple[EngineChoice, session.OpenVinoSession]:
        """Return in which precision the model is run, and the open model."""
        if read_kind(args["model_instance_kind"], self.folder()) == "GPU":
            raise ModelConfigError(
                "the instance is of kind KIND_GPU, but OpenVINO runs on the CPU alone here.",
                "write KIND_CPU or KIND_AUTO",
            )
        found = choice_for_openvino(config)
        return found, session.OpenVinoSession(
            file,
            properties(config, found.precision),
            found.signature,
            find_shared_folder(os.environ),
        )
