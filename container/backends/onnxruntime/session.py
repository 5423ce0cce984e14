"""A session of ONNX Runtime for one model instance: its tensors, and runs on plain arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from container.backends.batching import conform, decoded
from container.backends.model_config import (
    DYNAMIC,
    ModelConfigError,
    Signature,
    TensorSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from container.backends.batching import Tensors
    from container.backends.onnxruntime.execution_providers import Provider
    from container.backends.onnxruntime.session_settings import SessionSettings

DEFAULT_FILE = "model.onnx"

_DATA_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""ONNX Runtime's names of the element types that Triton's Python backend can carry."""


def model_file(folder: Path, configured: str) -> Path:
    """Return the model's file in its version folder; a folder of that name holds `model.onnx`.

    Raises:
        ModelConfigError: there is no such file.

    """
    file = folder / (configured or DEFAULT_FILE)
    if file.is_dir():
        file /= DEFAULT_FILE
    if not file.is_file():
        raise ModelConfigError(f"the model's file was expected at '{file}', but there is none.")
    return file


def read_signature(file: Path) -> Signature:
    """Return the tensors of a model file, without optimizing the graph.

    Raises:
        ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.

    """
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _signature(_opened(file, options, [("CPUExecutionProvider", {})]))


def available_providers() -> list[str]:
    """Return the execution providers of the installed ONNX Runtime."""
    return list(_import_onnxruntime().get_available_providers())


class OnnxSession:
    """The open session; one thread at a time may run it."""

    def __init__(
        self,
        file: Path,
        settings: SessionSettings,
        providers: Sequence[Provider],
        dims: Mapping[str, Sequence[int]],
    ) -> None:
        """Open the file, which takes a fraction of a second for each hundred megabytes.

        `dims` are those of the configured outputs: a scalar has none in the file, but the
        configuration and its readers expect some.

        Raises:
            ModelConfigError: ONNX Runtime cannot read the file, or a tensor's type is not served.

        """
        self._session = _opened(file, session_options(settings), providers)
        self._run_options = run_options(settings)
        self.signature = _signature(self._session)
        self._scalars = {
            spec.name: tuple(dims[spec.name])
            for spec in self.signature.outputs
            if not spec.shape and spec.name in dims
        }
        self._inputs = {
            spec.name: spec for spec in (*self.signature.inputs, *self.signature.optional)
        }

    def prepare(self, inputs: Tensors) -> Tensors:
        """Return a request's tensors in the shapes of the file, strings as str.

        Raises:
            RequestError: a shape is not one that the file accepts, or a string is not UTF-8.

        """
        return {
            name: decoded(name, array) if array.dtype == np.object_ else array
            for name, array in conform(inputs, self._inputs).items()
        }

    def run(self, inputs: Tensors, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the named outputs; raises what ONNX Runtime raises.

        ONNX Runtime's inference builds compute the whole graph all the same; the outputs that
        nobody asks for are not copied.
        """
        results = self._session.run(list(outputs), dict(inputs), self._run_options)
        answer = dict(zip(outputs, results, strict=True))
        for name in self._scalars.keys() & answer.keys():
            answer[name] = answer[name].reshape(self._scalars[name])
        return answer


def session_options(settings: SessionSettings) -> Any:
    """Return the `onnxruntime.SessionOptions` of the settings."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    modes = onnxruntime.ExecutionMode
    options.execution_mode = modes.ORT_PARALLEL if settings.parallel else modes.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, settings.graph_level
    )
    if settings.mem_arena is not None:
        options.enable_cpu_mem_arena = settings.mem_arena
    if settings.mem_pattern is not None:
        options.enable_mem_pattern = settings.mem_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.op_libraries:
        options.register_custom_ops_library(library)
    return options


def run_options(settings: SessionSettings) -> Any:
    """Return the `onnxruntime.RunOptions` of the settings."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.RunOptions()
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options


def _import_onnxruntime() -> Any:
    # Only where a file is opened: Triton starts one more process for each model, which completes
    # its configuration and often has nothing to open.
    try:
        import onnxruntime  # noqa: PLC0415 - see above
    except ImportError as error:
        raise ModelConfigError(
            f"an ONNX model was given, but onnxruntime cannot be imported ({error}): it is "
            "expected in the environment of the container (pip install onnxruntime)."
        ) from error
    return onnxruntime


def _opened(file: Path, options: Any, providers: Sequence[Provider]) -> Any:
    onnxruntime = _import_onnxruntime()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=list(providers))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelConfigError(f"ONNX Runtime cannot open '{file}': {reason}") from error


def _signature(session: Any) -> Signature:
    return Signature(
        inputs=_specs("input", session.get_inputs()),
        outputs=_specs("output", session.get_outputs()),
        optional=_specs("input", session.get_overridable_initializers()),
    )


def _specs(kind: str, nodes: Iterable[Any]) -> tuple[TensorSpec, ...]:
    specs = []
    for node in nodes:
        data_type = _DATA_TYPES.get(node.type)
        if data_type is None:
            raise ModelConfigError(
                f"{kind} '{node.name}' is a {node.type} in the file, but expected is one of "
                f"{', '.join(_DATA_TYPES)}."
            )
        # A named dimension, or one without name or size, is dynamic.
        shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
        specs.append(TensorSpec(node.name, data_type, shape))
    return tuple(specs)
