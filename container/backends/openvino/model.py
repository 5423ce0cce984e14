"""Triton's `openvino` backend in Python, for a Triton that is shipped without the native one.

It takes `model.xml` with `model.bin`, or `model.onnx`, and the parameters of NVIDIA's backend.
Triton loads this file by its path and starts one process of it for each model instance.
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

from container.backends import allocator, model_config, triton_requests
from container.backends.completion import completed
from container.backends.instance import Instance
from container.backends.openvino.properties import properties
from container.backends.openvino.session import OpenVinoFile, OpenVinoSession, model_file
from container.backends.shared_folder import shared_folder
from container.backends.shared_memory import fit
from container.backends.verdict import hide, of_openvino, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TritonPythonModel:
    """One model instance, as Triton's Python backend expects it."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Add inputs, outputs and batching from the file where the configuration has none.

        Raises:
            ModelConfigError: the file cannot be read or contradicts `max_batch_size`, or ragged
                batches are wanted.

        """
        config = auto_complete_model_config.as_dict()
        model_config.refuse_ragged(config)
        if model_config.needs_completion(config):
            folder = shared_folder(os.environ)
            completion = completed(
                config,
                model_config.written(_folder()),
                OpenVinoFile(_file(config)),
                folder / "trials" if folder else None,
            )
            config.update(completion.fields)
            triton_requests.log_completion(config["name"], completion)
        fit(config, os.environ)
        if model_config.DYNAMIC_BATCHING in config:
            model_config.take_every_shape(config)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model and compare its tensors with the configuration.

        Raises:
            ModelConfigError: with one sentence on what does not fit.

        """
        config = json.loads(args["model_config"])
        model_config.refuse_unsupported(config)
        if model_config.asked_kind(args["model_instance_kind"], _folder()) == "GPU":
            raise model_config.ModelConfigError(
                "the instance is of kind KIND_GPU, but OpenVINO runs on the CPU alone here.",
                "write KIND_CPU or KIND_AUTO",
            )
        file = _file(config)
        found = of_openvino(config, _folder(), file, os.environ)
        pb_utils.Logger.log_info(f"model '{config['name']}': {found.sentence()}")
        opened = OpenVinoSession(
            file,
            properties(config, found.precision),
            {tensor["name"]: tensor["dims"] for tensor in config["output"]},
            found.signature,
            shared_folder(os.environ),
        )
        self._instance: Instance | None = Instance(config, opened, os.environ)
        shared = shared_folder(os.environ)
        self._shown = show(found, shared, config["name"], args["model_version"])
        allocator.give_back()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one dynamic batch; None where they are answered later."""
        if self._instance is None:
            raise RuntimeError("the session was closed, but a request came after it.")
        return self._instance.execute(requests)

    def finalize(self) -> None:
        """Free the model and its memory, when everything is answered."""
        if self._instance:
            hide(self._shown)
            self._instance.close()
        self._instance = None


def _folder() -> Path:
    return Path(pb_utils.get_model_dir()).parent


def _file(config: Mapping[str, Any]) -> Path:
    # Triton's model folder is that of the file named in the configuration, if it names one.
    configured = PurePath(config.get("default_model_filename") or "").name
    return model_file(Path(pb_utils.get_model_dir()), configured)
