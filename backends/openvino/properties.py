"""The properties with which OpenVINO compiles a model.

https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from __future__ import annotations

from typing import Any

EXACT = "f32"
"""The precision in which answers are those of ONNX Runtime; OpenVINO takes bf16 by itself where the
processor has it."""

THREADS, STREAMS = "INFERENCE_NUM_THREADS", "NUM_STREAMS"


def computing_in(precision: str) -> dict[str, Any]:
    """Return the properties of a precision, "f32" or "bf16".

    In f32 nothing is computed in fewer bits. By itself OpenVINO rounds what is multiplied with
    weights in int8 to int8 as well, which is twice as fast and gives other answers.
    """
    exact = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if precision == EXACT else {}
    return {"INFERENCE_PRECISION_HINT": precision, **exact}


def properties(precision: str, threads: int, at_once: int) -> dict[str, Any]:
    """Return what a model is compiled with, for `at_once` runs that share the threads."""
    return {
        **computing_in(precision),
        THREADS: threads,
        STREAMS: at_once,
        # Each process would pin its threads to the same cores as all others.
        "ENABLE_CPU_PINNING": False,
    }
