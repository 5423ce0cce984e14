"""Run an ONNX model with each engine on one thread, and record the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from backends.model_config import ModelConfigError
from backends.onnxruntime.execution_providers import CPU
from backends.onnxruntime.session import open_model, session_options
from backends.onnxruntime.session_settings import SessionSettings
from backends.openvino.session import computing_in, core
from clients.testing import OnnxModels
from container.trouble import Trouble

Arrays = dict[str, npt.NDArray[Any]]
Run = Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]


class RecordingSession:
    """A session for `OnnxModels` that records the inputs and the outputs.

    Raises Trouble: ONNX Runtime cannot open the file.
    """

    def __init__(self, file: Path) -> None:
        session = open_session(file)
        self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs
        self.get_overridable_initializers = session.get_overridable_initializers
        self.inputs: list[Arrays] = []
        self.outputs: list[Arrays] = []
        self.by = onnxruntime_run(session)
        """What runs the model; may be another engine from one request to the next."""

    def run(self, names: Sequence[str], given: Arrays) -> list[npt.NDArray[Any]]:
        outputs = self.by(given)
        self.inputs.append(given)
        self.outputs.append(outputs)
        return [outputs[name].copy() for name in names]

    def emptied(self) -> tuple[list[Arrays], list[Arrays]]:
        """Return the inputs and outputs noted so far, and forget them."""
        noted = self.inputs, self.outputs
        self.inputs, self.outputs = [], []
        return noted


class RecordedModels(OnnxModels):
    """Runs one model of a repository in a recording session."""

    def __init__(self, folder: Path, model: str, tap: RecordingSession) -> None:
        super().__init__(folder)
        self._model, self._tap = model, tap

    def _session(self, model: str, version: str) -> Any:
        return self._tap if model == self._model else super()._session(model, version)


def open_session(file: Path) -> Any:
    """Return a session of ONNX Runtime with one thread for a file.

    Raises Trouble: it cannot be opened.
    """
    try:
        return open_model(file, session_options(SessionSettings()), [(CPU, {})])
    except ModelConfigError as error:
        raise Trouble(str(error)) from error


def onnxruntime_run(session: Any) -> Run:
    names = [one.name for one in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(names, given), strict=True))


def openvino_run(file: Path, precision: str = "f32") -> Run:
    """Return what runs a model on OpenVINO, on one thread.

    What is not in int8 is computed in `precision`.

    Raises Exception: it cannot, as in NVIDIA's image, which has no OpenVINO.
    """
    options = {**computing_in(precision), "INFERENCE_NUM_THREADS": 1}
    model = core().compile_model(str(file), "CPU", options)
    request = model.create_infer_request()
    names = [port.get_any_name() for port in model.outputs]

    def run(given: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        request.infer(dict(given))
        return {name: request.get_tensor(name).data.copy() for name in names}

    return run
