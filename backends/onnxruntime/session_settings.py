"""A model's configuration as settings of an ONNX Runtime session.

https://github.com/triton-inference-server/onnxruntime_backend#model-config-options
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.machine.cpu_share import threads_of_an_instance, usable_cpus
from backends.model_config import ModelConfigError, count_of, instance_count, read_parameters

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

MOST_AT_ONCE = 8
"""Runs of one instance: each needs memory for what it computes, and the more there are, the longer
no request is answered where all began together."""

LEFT_OUT = (
    *("execution_mode", "inter_op_thread_count", "enable_mem_", "memory.", "gpu_mem_limit"),
    *("do_copy_in_default_stream", "cudnn_conv_algo_search", "arena_extend_strategy"),
)
"""What parameters of the native backend begin with that are not read: a graph is run in sequence,
memory is given back by itself where a run was unusually large, and CUDA's are its accelerator's."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is opened with.

    `intra_op_threads` are those of a run that is alone; `at_once` is how many runs an instance has
    at a time, each with its share of these; `graph_level` is the name of a
    `GraphOptimizationLevel`; `session_entries` are ONNX Runtime's own keys and values.
    """

    intra_op_threads: int
    at_once: int = 1
    graph_level: str = "ORT_ENABLE_ALL"
    session_entries: dict[str, str] = field(default_factory=dict)
    op_libraries: tuple[str, ...] = ()


def session_settings(
    config: Mapping[str, Any], cpus: int | None = None, *, on_cpu: bool = True
) -> SessionSettings:
    """Read the settings from a configuration.

    Where the configuration does not say how many threads, a run has the cores of
    `cpu_share.threads_of_an_instance`, and on a CPU an instance without a batcher runs as many
    requests at a time, `MOST_AT_ONCE` at most. Waiting threads sleep instead of spinning unless
    `session.intra_op.allow_spinning` says "1": they share the cores with the web workers.

    Raises ModelConfigError: naming the parameter whose value is not one of those expected.
    """
    texts = read_parameters(config)
    cpus = cpus or usable_cpus()
    share = threads_of_an_instance(instance_count(config), cpus)
    threads = count_of(config, "intra_op_thread_count")
    entries = {key: text for key, text in texts.items() if key.startswith("session.")}
    for key in _SPINNING:
        # ONNX Runtime takes any other value for a yes, without a word.
        text = entries.get(key, "0")
        if text.strip().lower() not in _BOOLEANS:
            raise ModelConfigError(
                f"parameter '{key}' is '{text}', but expected is {' or '.join(_BOOLEANS)}."
            )
        entries[key] = _BOOLEANS[text.strip().lower()]
    # Spinning threads are never out of the way of others.
    spinning = entries[_SPINNING[0]] == "1"
    scheduled = any(name in config for name in ("dynamic_batching", "sequence_batching"))
    one_by_one = not on_cpu or threads or spinning or scheduled
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level") or 0)
    libraries = (config.get("model_operations") or {}).get("op_library_filename") or []
    return SessionSettings(
        intra_op_threads=threads or share,
        at_once=1 if one_by_one else min(share, MOST_AT_ONCE),
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
    return next((key for key in read_parameters(config) if key.startswith("session.")), "")


def warn_of_unread(config: Mapping[str, Any]) -> list[str]:
    """Return a warning for each parameter of the native backend that is not read here."""
    return [
        f"the parameter '{key}' is left out: see docs/engines.md."
        for key in read_parameters(config)
        if key.startswith(LEFT_OUT)
    ]
