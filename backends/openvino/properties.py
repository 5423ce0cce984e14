"""A model's configuration as properties of OpenVINO.

https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.machine.cpu_share import CORES_OF_A_RUN, threads_of_an_instance, usable_cpus
from backends.model_config import count_of, instance_count

if TYPE_CHECKING:
    from collections.abc import Mapping

EXACT = "f32"
"""The precision in which answers are those of ONNX Runtime; OpenVINO takes bf16 by itself where the
processor has it."""

THREADS, STREAMS = "INFERENCE_NUM_THREADS", "NUM_STREAMS"
"""The parameters of a configuration that are read, as NVIDIA's backend of OpenVINO calls them."""


def computing_in(precision: str) -> dict[str, Any]:
    """Return the properties of a precision, "f32" or "bf16".

    In f32 nothing is computed in fewer bits. By itself OpenVINO rounds what is multiplied with
    weights in int8 to int8 as well, which is twice as fast and gives other answers.
    """
    exact = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if precision == EXACT else {}
    return {"INFERENCE_PRECISION_HINT": precision, **exact}


def properties(
    config: Mapping[str, Any], precision: str = EXACT, cpus: int | None = None
) -> dict[str, Any]:
    """Return what a model is compiled with.

    Where the configuration says nothing, a run has all cores, or four of many, and there are as
    many runs at a time as fit beside each other: see `cpu_share`.

    Raises ModelConfigError: naming the parameter that is no number.
    """
    cpus = cpus or usable_cpus()
    threads = (
        count_of(config, THREADS)
        or count_of(config, "intra_op_thread_count")
        or threads_of_an_instance(instance_count(config), cpus)
    )
    return {
        **computing_in(precision),
        THREADS: threads,
        STREAMS: count_of(config, STREAMS) or max(1, threads // min(threads, CORES_OF_A_RUN)),
        # Each process would pin its threads to the same cores as all others.
        "ENABLE_CPU_PINNING": False,
    }
