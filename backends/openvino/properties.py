"""A model's configuration as properties of OpenVINO, in Triton's spellings.

https://github.com/triton-inference-server/openvino_backend#parameters
https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.machine.cpu_share import (
    threads_of_a_run,
    threads_of_an_instance,
    usable_cpus,
)
from backends.model_config import (
    NATIVE,
    ModelConfigError,
    count_of,
    instance_count,
    parse_int,
    read_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

EXACT = "f32"
"""The precision in which answers are those of ONNX Runtime; OpenVINO takes bf16 by itself where the
processor has it."""

HINT_BF16 = "HINT_BF16"
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "PERFORMANCE_HINT": ("latency", "throughput", "cumulative_throughput"),
    HINT_BF16: ("yes", "no"),
    "TARGET_DEVICE": ("cpu",),
    "CPU_EXTENSION_PATH": (),  # no library of an author is loaded
    "RESHAPE_IO_LAYERS": (),  # a file is run in its own shapes
}
"""What parameters may say, in small letters; nothing where they cannot be met here."""


KEYS = (
    *_KNOWN,
    "INFERENCE_NUM_THREADS",
    "COMPILATION_NUM_THREADS",
    "NUM_STREAMS",
    "SKIP_OV_DYNAMIC_BATCHSIZE",  # the last two mean nothing here: any batch is run as it is
    "ENABLE_BATCH_PADDING",
)
"""The parameters of NVIDIA's backend."""


def computing_in(precision: str) -> dict[str, Any]:
    """Return the properties of a precision, "f32" or "bf16".

    In f32 nothing is computed in fewer bits. By itself OpenVINO rounds what is multiplied with
    weights in int8 to int8 as well, which is twice as fast and gives other answers.
    """
    exact = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if precision == EXACT else {}
    return {"INFERENCE_PRECISION_HINT": precision, **exact}


def properties(
    config: Mapping[str, Any], precision: str = "", cpus: int | None = None
) -> dict[str, Any]:
    """Return what a model is compiled with.

    Where the configuration says nothing, a run has all cores, or four of many, and there are as
    many runs at a time as fit beside each other: see `cpu_share`.

    Without a `precision` it is what `HINT_BF16` says.

    Raises ModelConfigError: naming the parameter whose value is not one of those expected.
    """
    texts = read_parameters(config)
    cpus = cpus or usable_cpus()
    threads = (
        count_of(config, "INFERENCE_NUM_THREADS")
        or count_of(config, "intra_op_thread_count")
        or threads_of_an_instance(instance_count(config), cpus)
    )
    hinted = "bf16" if texts.get(HINT_BF16, "").strip().lower() == "yes" else EXACT
    found: dict[str, Any] = {
        **computing_in(precision or hinted),
        "INFERENCE_NUM_THREADS": threads,
        # Each process would pin its threads to the same cores as all others.
        "ENABLE_CPU_PINNING": False,
    }
    for key, known in _KNOWN.items():
        if (text := texts.get(key, "").strip()) and text.lower() not in known:
            raise ModelConfigError(
                f"parameter '{key}' is '{text}', but expected is "
                f"{' or '.join(map(str.upper, known)) or 'nothing'}.",
                "write that, or leave it out" if known else f"leave it out, or {NATIVE}",
            )
    if hint := texts.get("PERFORMANCE_HINT", "").strip():
        found["PERFORMANCE_HINT"] = hint.upper()
    streams = texts.get("NUM_STREAMS", "").strip()
    if streams.lower() in ("auto", "numa"):
        found["NUM_STREAMS"] = streams.upper()
    elif streams:
        found["NUM_STREAMS"] = parse_int("NUM_STREAMS", streams)
    elif not hint:
        found["NUM_STREAMS"] = max(1, threads // threads_of_a_run(threads))
    if compiling := count_of(config, "COMPILATION_NUM_THREADS"):
        found["COMPILATION_NUM_THREADS"] = compiling
    return found
