"""Triton's `onnxruntime` backend in Python, for a Triton that is shipped without the native one.

A model's configuration means here what it means to NVIDIA's native backend. Triton loads this
file by its path and starts one process of it for each model instance.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

# Triton finds this file, perhaps through a symbolic link, but not the package it belongs to. The
# package's home goes last, so that it hides nothing that is installed.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from container.backends import allocator, model_config, triton_requests
from container.backends.batcher import Batcher
from container.backends.batching import ByRows
from container.backends.onnxruntime import session
from container.backends.onnxruntime.completion import completed
from container.backends.onnxruntime.execution_providers import (
    CPU,
    execution_providers,
)
from container.backends.onnxruntime.session_settings import (
    session_settings,
)
from container.backends.shared_folder import shared_folder
from container.backends.shared_memory import Share, fit
from container.backends.side_by_side import SideBySide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from container.backends.triton_requests import Asked


class TritonPythonModel:
    """One model instance, as Triton's Python backend expects it."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Add inputs, outputs and batching from the file where the configuration has none.

        Requests share runs only where the configuration says so, or a trial shows that it is
        harmless. Where there is a batcher here, it gets requests of every shape.

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
            if completion.info:
                pb_utils.Logger.log_info(f"model '{config['name']}': {completion.info}")
            if completion.warning:
                what, fix = completion.warning
                pb_utils.Logger.log_warn(f"model '{config['name']}': {what}; {fix}")
        fit(config, os.environ)
        if session_settings(config).gathers:
            model_config.take_every_shape(config)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the session and compare its tensors with the configuration.

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
            session.available_providers(),
        )
        if args["model_instance_kind"] == "GPU" and providers[0][0] == CPU:
            warnings.append("it runs on the CPU: there is a GPU, but no onnxruntime-gpu.")
        triton_requests.log_warnings(config["name"], warnings)
        settings = session_settings(config, on_cpu=providers[0][0] == CPU)
        opened = session.OnnxSession(
            _file(config),
            settings,
            providers,
            {tensor["name"]: tensor["dims"] for tensor in config["output"]},
            shared_folder(os.environ),
        )
        try:
            model_config.check(config, opened.signature)
            share = Share.of(config, os.environ)
        except BaseException:
            opened.close()
            raise
        self._session: session.OnnxSession | None = opened
        self._answering = triton_requests.Answering(
            config["name"],
            [tensor["name"] for tensor in config["output"]],
            opened.prepare,
            opened.run,
            model_config.max_batch_size(config),
            share,
            opened.on_cpu,
            opened.running,
            ByRows(opened.by_rows, opened.run) if opened.by_rows else None,
        )
        self._runs: Batcher[Asked, Any] | SideBySide[Asked, Any] | None = None
        if settings.gathers:
            run = opened.run_beside_others
            by_rows = ByRows(opened.by_rows, run) if opened.by_rows else None
            beside = replace(self._answering, run=run, by_rows=by_rows)
            self._runs = Batcher(
                beside.results,
                self._answering.results,
                beside.send,
                beside.max_batch_size,
                settings.at_once,
                settings.few,
                settings.most,
                opened.is_crowded,
            )
        elif settings.at_once:
            answering = self._answering
            self._runs = SideBySide(answering.results, answering.send, settings.at_once)
        allocator.give_back()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the requests of one dynamic batch; None where they are answered later."""
        if self._session is None:
            raise RuntimeError("the session was closed, but a request came after it.")
        asked = self._answering.asked(requests)
        if self._runs and not self._runs.alone(asked):
            now = time.time() * 1e6
            self._runs.put([one.kept() for one in asked if not one.is_late(now)])
            if late := [one for one in asked if one.is_late(now)]:
                # Nobody waits for these, and no run is to wait for others on their account.
                self._answering.send(late, self._answering.results(late))
            return None
        began = time.monotonic()
        responses = self._answering.responses(asked)
        if self._runs:
            self._runs.ran(time.monotonic() - began)
        return responses

    def finalize(self) -> None:
        """Free the session and its memory, when everything is answered."""
        if self._runs:
            self._runs.close()
        if self._session:
            self._session.close()
        self._session = None


def _folder() -> Path:
    return Path(pb_utils.get_model_dir()).parent


def _file(config: Mapping[str, Any]) -> Path:
    # Triton's model folder is that of the file named in the configuration, if it names one.
    configured = PurePath(config.get("default_model_filename") or "").name
    return session.model_file(Path(pb_utils.get_model_dir()), configured)
