"""A model's configuration as settings of an ONNX Runtime session, in the native spellings.

https://github.com/triton-inference-server/onnxruntime_backend#model-config-options
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from container.backends import parameters
from container.backends.batcher import most_in_one_run, runs_at_once
from container.backends.cpu_share import default_thread_count, usable_cpus
from container.backends.model_config import ModelConfigError, instance_count, max_batch_size

if TYPE_CHECKING:
    from collections.abc import Mapping

_GRAPH_LEVELS = {
    -1: "ORT_ENABLE_BASIC",
    0: "ORT_ENABLE_ALL",
    1: "ORT_ENABLE_EXTENDED",
    2: "ORT_DISABLE_ALL",
}
"""`optimization.graph.level` as the native backend reads it; other numbers are its default, 0."""

_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")

ALONE = {
    "session.intra_op.allow_spinning": "1",
    "session.intra_op.spin_duration_us": "30",
    "session.force_spinning_stop": "1",
}
"""A run that is alone: its threads look for work this long before they sleep, and not after it.

A text of 9 tokens has a piece of work for both cores every 0.1 ms, and to wake a thread for each
took a tenth of its time; that is all that longer spinning gains.
"""

MOST_AT_ONCE = 8
"""Runs of one instance: each needs memory for what it computes, and the more there are, the longer
nobody is answered where all began together."""

_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is opened with.

    `intra_op_threads` are an instance's share; `lone_threads` is what they become for a run while
    there is no other, and `lone_entries` are added then; `at_once` is how many runs an instance has
    at a time, 0 where it has what Triton gives it, `gathers` whether a run has requests that Triton
    gave it one by one, `few` up to how many tokens all of them had better share one, and `most` of
    how many rows, where the configuration says; `graph_level` is the name of a
    `GraphOptimizationLevel`; `session_entries` and `run_entries` are ONNX Runtime's own keys and
    values; None leaves a choice to ONNX Runtime.
    """

    intra_op_threads: int
    inter_op_threads: int
    lone_threads: int = 0
    lone_entries: dict[str, str] = field(default_factory=dict)
    at_once: int = 0
    gathers: bool = False
    few: int = 0
    most: int | None = None
    parallel: bool = False
    graph_level: str = "ORT_ENABLE_ALL"
    mem_arena: bool | None = None
    mem_pattern: bool | None = None
    session_entries: dict[str, str] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)
    op_libraries: tuple[str, ...] = ()

    @property
    def run_threads(self) -> int:
        """Those of each run where an instance has as many as it may."""
        return max(1, self.intra_op_threads // max(1, self.at_once))

    def alone(self) -> SessionSettings:
        """Return those for a run while there is no other."""
        entries = {**self.session_entries, **self.lone_entries}
        return replace(self, intra_op_threads=self.lone_threads, session_entries=entries)


def session_settings(
    config: Mapping[str, Any], cpus: int | None = None, *, on_cpu: bool = True
) -> SessionSettings:
    """Read the settings from a configuration.

    Where the configuration does not say how many threads, an instance gets its share of `cpus`
    (default: those this process may use), and all of them while no other instance runs. On a CPU it
    has as many runs at a time as it has cores, `MOST_AT_ONCE` at most; with dynamic batching, where
    no `preferred_batch_size` keeps runs small, `runs_at_once`, or one where it is the only instance
    and there is one core. Waiting threads sleep instead of spinning unless
    `session.intra_op.allow_spinning` says "1": they share the cores with the web workers.

    Raises:
        ModelConfigError: naming the parameter whose value is not one of those expected.

    """
    texts = parameters.texts(config)
    mode = parameters.parsed_int("execution_mode", texts.get("execution_mode", "0"))
    if mode not in (0, 1):
        raise ModelConfigError(
            f"parameter 'execution_mode' is '{mode}', but expected is '0' (sequential) or "
            "'1' (parallel)."
        )
    cpus = cpus or usable_cpus()
    share = default_thread_count(instance_count(config), cpus)
    threads = parameters.count_of(config, "intra_op_thread_count")
    entries = {key: text for key, text in texts.items() if key.startswith("session.")}
    spinning_is_configured = _SPINNING[0] in entries
    for key in _SPINNING:
        # ONNX Runtime takes any other value for a yes, without a word.
        entries[key] = "1" if parameters.parsed_bool(key, entries.get(key, "0")) else "0"
    # Spinning threads are never out of the way of others.
    spinning = entries[_SPINNING[0]] == "1"
    at_once, gathers = 0, "dynamic_batching" in config
    preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size") or []
    most = max(map(int, preferred), default=0)
    # Triton completes a configuration without preferred sizes by the largest that there may be.
    small = 0 < most < max_batch_size(config)
    one_by_one = not on_cpu or "sequence_batching" in config or mode == 1
    if not (threads or spinning or one_by_one):
        if share > 1:
            # So many cores each that none is left over by the most runs.
            at_once = share // -(-share // MOST_AT_ONCE)
            at_once = min(at_once, runs_at_once(share)) if gathers and not small else at_once
        elif gathers:  # with a core for each of several instances these are what runs at a time
            at_once = int(instance_count(config) == 1)
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level") or 0)
    libraries = (config.get("model_operations") or {}).get("op_library_filename") or []
    return SessionSettings(
        intra_op_threads=threads or share,
        lone_threads=threads or (share if spinning else cpus),
        lone_entries={} if spinning_is_configured else {**ALONE},
        at_once=at_once,
        gathers=gathers and at_once > 0,
        few=most_in_one_run(cpus) if gathers and at_once else 0,
        most=most if small else None,
        inter_op_threads=parameters.count_of(config, "inter_op_thread_count") or share,
        parallel=mode == 1,
        graph_level=_GRAPH_LEVELS.get(level, "ORT_ENABLE_ALL"),
        mem_arena=parameters.bool_of(config, "enable_mem_arena"),
        mem_pattern=parameters.bool_of(config, "enable_mem_pattern"),
        session_entries=entries,
        run_entries={key: texts[key] for key in (_ARENA_SHRINKAGE,) if key in texts},
        op_libraries=tuple(libraries),
    )
