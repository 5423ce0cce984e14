"""Triton's `onnxruntime` backend in Python, for a Triton that is shipped without the native one.

A model's configuration means here what it means to NVIDIA's native backend. On a CPU OpenVINO runs
the model where it is faster and its answers are the same; see `container.backends.verdict`. Triton
loads this file by its path and starts one process of it for each model instance.
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
from container.backends.onnxruntime import session
from container.backends.onnxruntime.execution_providers import CPU, execution_providers
from container.backends.onnxruntime.session_settings import session_settings
from container.backends.openvino.properties import properties
from container.backends.openvino.session import OpenVinoSession
from container.backends.shared_folder import shared_folder
from container.backends.shared_memory import fit
from container.backends.verdict import ONNXRUNTIME, OPENVINO, Verdict, hide, of_onnxruntime, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TritonPythonModel:
    """One model instance, as Triton's Python backend expects it."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Add inputs, outputs and batching from the file where the configuration has none.

        Requests share runs only where the configuration says so, or a trial shows that it is
        harmless. Where they do, Triton hands over requests of every shape together.

        Raises:
            ModelConfigError: the file cannot be read or contradicts `max_batch_size`, a parameter
                is not what it should be, or ragged batches are wanted.

        """
        # The methods that add a tensor refuse `reshape`, which a scalar with a batch dimension
        # needs; Triton takes back the dictionary, whoever changed it.
        config = auto_complete_model_config.as_dict()
        model_config.refuse_ragged(config)
        if model_config.needs_completion(config):
            folder = shared_folder(os.environ)
            completion = completed(
                config,
                model_config.written(_folder()),
                session.ModelFile(_file(config)),
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
        kind = model_config.asked_kind(args["model_instance_kind"], _folder())
        providers, warnings = execution_providers(
            config,
            kind,
            int(args["model_instance_device_id"]),
            [CPU] if kind == "CPU" else session.available_providers(),
        )
        on_cpu = providers[0][0] == CPU
        if args["model_instance_kind"] == "GPU" and on_cpu:
            warnings.append("it runs on the CPU: there is a GPU, but no onnxruntime-gpu.")
        triton_requests.log_warnings(config["name"], warnings)
        file = _file(config)
        found = Verdict(ONNXRUNTIME, reason="on a GPU")
        if on_cpu:
            found = of_onnxruntime(config, _folder(), file, os.environ)
        pb_utils.Logger.log_info(f"model '{config['name']}': {found.sentence()}")
        dims = {tensor["name"]: tensor["dims"] for tensor in config["output"]}
        opened: Any
        if found.engine == OPENVINO:
            opened = OpenVinoSession(
                file,
                properties(config, found.precision),
                dims,
                found.signature,
                shared_folder(os.environ),
            )
        else:
            opened = session.OnnxSession(
                file, session_settings(config, on_cpu=on_cpu), providers, dims
            )
        self._instance: Instance | None = Instance(config, opened, os.environ)
        shared = shared_folder(os.environ) if on_cpu else None
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
    return session.model_file(Path(pb_utils.get_model_dir()), configured)
