"""Triton's `pytorch` backend in Python, for TorchScript models.

A model's configuration means here what it means to NVIDIA's native backend. Triton loads this
file by its path and starts one process of it for each model instance.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from container.triton_backends import config_check, model_config, triton_requests
from container.triton_backends.machine import allocator
from container.triton_backends.machine.shared_memory import Share, fit
from container.triton_backends.pytorch import torchscript, torchscript_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TritonPythonModel:
    """One model instance, as Triton's Python backend expects it."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Refuse a configuration without inputs or outputs: the file cannot complete it.

        Raises:
            ModelConfigError: the configuration lists no inputs or no outputs, or wants ragged
                batches.

        """
        config = auto_complete_model_config.as_dict()
        torchscript_settings.check_listed(config)
        config_check.refuse_ragged(config)
        fit(config, os.environ)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the module and match its arguments with the configuration.

        Raises:
            ModelConfigError: with one sentence on what does not fit.

        """
        config = json.loads(args["model_config"])
        config_check.refuse_unsupported(config)
        torchscript_settings.check_listed(config)
        settings, warnings = torchscript_settings.torch_settings(config)
        triton_requests.log_warnings(config["name"], warnings)
        name = PurePath(config.get("default_model_filename") or torchscript.DEFAULT_FILE).name
        self._module: torchscript.TorchScriptModule | None = torchscript.TorchScriptModule(
            Path(pb_utils.get_model_dir()) / name,
            torchscript_settings.configured_signature(config),
            settings,
            model_config.asked_kind(
                args["model_instance_kind"], Path(pb_utils.get_model_dir()).parent
            ),
            int(args["model_instance_device_id"]),
        )
        self._answering = triton_requests.RequestHandler(
            config["name"],
            [tensor["name"] for tensor in config["output"]],
            self._module.prepare,
            self._module.run,
            model_config.max_batch_size(config),
            Share.of(config, os.environ),
            self._module.on_cpu,
            cached=model_config.is_cached(config),
        )
        allocator.give_back()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests of one dynamic batch, in as few runs as their shapes allow."""
        if self._module is None:
            raise RuntimeError("the module was freed, but a request came after it.")
        return self._answering.responses(self._answering.asked(requests))

    def finalize(self) -> None:
        """Free the module and its memory."""
        self._module = None
