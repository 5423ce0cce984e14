"""A model's configuration as settings of an ONNX Runtime session.

https://github.com/triton-inference-server/onnxruntime_backend#model-config-options
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.model_config import ModelConfigError, read_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

_GRAPH_LEVELS = {
    -1: "ORT_ENABLE_BASIC",
    0: "ORT_ENABLE_ALL",
    1: "ORT_ENABLE_EXTENDED",
    2: "ORT_DISABLE_ALL",
}
"""`optimization.graph.level` as the native backend reads it; other numbers are its default, 0."""

_BOOLEANS = {"true": "1", "1": "1", "false": "0", "0": "0"}
"""What `ParseBoolValue` of Triton's backend library accepts, in any case."""

_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")

LEFT_OUT = (
    *("execution_mode", "inter_op_thread_count", "enable_mem_", "memory.", "gpu_mem_limit"),
    *("do_copy_in_default_stream", "cudnn_conv_algo_search", "arena_extend_strategy"),
)
"""What parameters of the native backend begin with that are not read: a graph is run in sequence,
memory is given back by itself where a run was unusually large, and CUDA's are its accelerator's."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is opened with.

    `intra_op_threads` are those of a run; `graph_level` is the name of a `GraphOptimizationLevel`;
    `session_entries` are ONNX Runtime's own keys and values.
    """

    intra_op_threads: int = 1
    graph_level: str = "ORT_ENABLE_ALL"
    session_entries: dict[str, str] = field(default_factory=dict)
    op_libraries: tuple[str, ...] = ()


def session_settings(config: Mapping[str, Any]) -> SessionSettings:
    """Read the settings from a configuration, but for the threads.

    Waiting threads sleep instead of spinning unless `session.intra_op.allow_spinning` says "1":
    they share the cores with the web workers.

    Raises ModelConfigError: naming the parameter whose value is not one of those expected.
    """
    texts = read_parameters(config)
    entries = {key: text for key, text in texts.items() if key.startswith("session.")}
    for key in _SPINNING:
        # ONNX Runtime takes any other value for a yes, without a word.
        text = entries.get(key, "0")
        if text.strip().lower() not in _BOOLEANS:
            raise ModelConfigError(
                f"parameter '{key}' is '{text}', but expected is {' or '.join(_BOOLEANS)}."
            )
        entries[key] = _BOOLEANS[text.strip().lower()]
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level") or 0)
    libraries = (config.get("model_operations") or {}).get("op_library_filename") or []
    return SessionSettings(
        graph_level=_GRAPH_LEVELS.get(level, "ORT_ENABLE_ALL"),
        session_entries=entries,
        op_libraries=tuple(libraries),
    )


def own_settings(config: Mapping[str, Any]) -> str:
    """Return the first setting that only ONNX Runtime has; empty for none."""
    optimization = config.get("optimization") or {}
    if (config.get("model_operations") or {}).get("op_library_filename"):
        return "op_library_filename"
    if (optimization.get("graph") or {}).get("level"):
        return "optimization.graph.level"
    if (config.get("sequence_batching") or {}).get("state"):
        return "sequence_batching.state"  # whose differences would add up
    return next((key for key in read_parameters(config) if key.startswith("session.")), "")


def warn_of_unread(config: Mapping[str, Any]) -> list[str]:
    """Return a warning for each parameter of the native backend that is not read here."""
    return [
        f"the parameter '{key}' is left out: see docs/engines.md."
        for key in read_parameters(config)
        if key.startswith(LEFT_OUT)
    ]
