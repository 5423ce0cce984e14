"""A model's configuration as properties of a model that OpenVINO compiles, in Triton's spellings.

https://github.com/triton-inference-server/openvino_backend#parameters
https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from container.backends import parameters
from container.backends.cpu_share import (
    threads_of_a_run,
    threads_of_an_instance,
    usable_cpus,
)
from container.backends.model_config import ModelConfigError, instance_count

if TYPE_CHECKING:
    from collections.abc import Mapping

EXACT = "f32"
"""The precision in which answers are those of ONNX Runtime; OpenVINO takes bf16 by itself where the
processor has it."""

_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
HINT_BF16 = "HINT_BF16"
_YES, _NO = ("yes", "YES", "Yes"), ("no", "NO", "No")


def properties(
    config: Mapping[str, Any], precision: str = EXACT, cpus: int | None = None
) -> dict[str, Any]:
    """Return what a model is compiled with.

    Where the configuration says nothing, a run has all cores, or four of many, and there are as many
    runs at a time as fit beside each other: `cpu_share`.

    Args:
        config: the model's.
        precision: in which it computes, "f32" or "bf16"; `HINT_BF16` overrides it.
        cpus: that may be used; those of this process where it is not said.

    Raises:
        ModelConfigError: naming the parameter whose value is not one of those expected.

    """
    texts = parameters.texts(config)
    cpus = cpus or usable_cpus()
    threads = (
        parameters.count_of(config, "INFERENCE_NUM_THREADS")
        or parameters.count_of(config, "intra_op_thread_count")
        or threads_of_an_instance(instance_count(config), cpus)
    )
    found: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        # Each process would pin its threads to the same cores as all others.
        "ENABLE_CPU_PINNING": False,
    }
    if hint := texts.get("PERFORMANCE_HINT", "").upper():
        if hint not in _HINTS:
            raise _unexpected("PERFORMANCE_HINT", hint, ", ".join(_HINTS))
        found["PERFORMANCE_HINT"] = hint
    streams = texts.get("NUM_STREAMS", "").strip()
    if streams.lower() in ("auto", "numa"):
        found["NUM_STREAMS"] = streams.upper()
    elif streams:
        found["NUM_STREAMS"] = parameters.parsed_int("NUM_STREAMS", streams)
    elif not hint:
        found["NUM_STREAMS"] = max(1, threads // threads_of_a_run(threads))
    if compiling := parameters.count_of(config, "COMPILATION_NUM_THREADS"):
        found["COMPILATION_NUM_THREADS"] = compiling
    if (text := texts.get(HINT_BF16)) is not None:
        if text not in (*_YES, *_NO):
            raise _unexpected(HINT_BF16, text, "yes or no")
        found["INFERENCE_PRECISION_HINT"] = "bf16" if text in _YES else EXACT
    if (device := texts.get("TARGET_DEVICE", "CPU")) != "CPU":
        raise _unexpected("TARGET_DEVICE", device, "CPU")
    if extension := texts.get("CPU_EXTENSION_PATH"):
        raise _unexpected("CPU_EXTENSION_PATH", extension, "nothing: libraries are not loaded")
    if layers := texts.get("RESHAPE_IO_LAYERS"):
        raise _unexpected("RESHAPE_IO_LAYERS", layers, "nothing: a file is run in its own shapes")
    return found


def _unexpected(key: str, text: str, expected: str) -> ModelConfigError:
    return ModelConfigError(f"parameter '{key}' is '{text}', but expected is {expected}.")
