"""Triton's `onnxruntime` backend in Python, for a Triton without the native one.

A model's configuration means here what it means to NVIDIA's native backend. On a CPU OpenVINO runs
the model where it is faster and its answers are the same; see
`backends.engine_choice`. Triton loads this file by its path and starts one process
of it for each model instance.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from backends.engine_choice import (
    ONNXRUNTIME,
    OPENVINO,
    EngineChoice,
    choice_for_onnxruntime,
)
from backends.machine.shared_folder import find_shared_folder
from backends.model_config import read_kind
from backends.onnxruntime import session
from backends.onnxruntime.execution_providers import CPU, execution_providers
from backends.onnxruntime.session_settings import session_settings, warn_of_unread
from backends.openvino.properties import properties
from backends.openvino.session import OpenVinoSession
from backends.python_model import PythonModel
from backends.triton_requests import log_warnings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.triton_requests import Session


class TritonPythonModel(PythonModel):
    """One model instance, as Triton's Python backend expects it."""

    model_file = staticmethod(session.model_file)
    read = session.OnnxFile

    def open(
        self, config: Mapping[str, Any], file: Path, args: Mapping[str, str]
    ) -> tuple[EngineChoice, Session]:
        """Return which engine runs the model, and the open model."""
        kind = read_kind(args["model_instance_kind"], self.folder())
        providers, warnings = execution_providers(
            config,
            kind,
            int(args["model_instance_device_id"]),
            [CPU] if kind == "CPU" else session.available_providers(),
        )
        on_cpu = providers[0][0] == CPU
        if args["model_instance_kind"] == "GPU" and on_cpu:
            warnings.append("it runs on the CPU: there is a GPU, but no onnxruntime-gpu.")
        log_warnings(config["name"], [*warnings, *warn_of_unread(config)])
        found = EngineChoice(ONNXRUNTIME, reason="on a GPU")
        if on_cpu:
            found = choice_for_onnxruntime(config, self.folder(), file, os.environ)
        if found.engine == OPENVINO:
            return found, OpenVinoSession(
                file,
                properties(config, found.precision),
                found.signature,
                find_shared_folder(os.environ),
            )
        settings = session_settings(config, on_cpu=on_cpu)
        return found, session.OnnxSession(file, settings, providers)
