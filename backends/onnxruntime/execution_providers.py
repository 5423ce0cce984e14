"""ONNX Runtime's execution providers, in the native backend's spellings.

https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-cuda-execution-provider-optimization
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.model_config import NATIVE, ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Provider = tuple[str, dict[str, str]]

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def execution_providers(
    config: Mapping[str, Any], kind: str, device_id: int, available: Collection[str]
) -> tuple[list[Provider], list[str]]:
    """Return the providers with options, by preference, and warnings.

    `kind` is the instance's, `CPU`, `GPU`, `AUTO` or `MODEL`; `available` are the providers of
    the installed ONNX Runtime. TensorRT costs a warning, and CUDA takes its place.

    Raises ModelConfigError: the instance is of kind GPU and there is no provider for CUDA, or an
    accelerator is not known.
    """
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    for accelerator in accelerators.get("cpu_execution_accelerator") or []:
        if accelerator["name"] != "openvino":
            raise _unknown("CPU", accelerator["name"], "'openvino'")  # no provider: its own engine
    if kind == "GPU" and CUDA not in available:
        raise ModelConfigError(
            f"the instance is of kind KIND_GPU, but the installed ONNX Runtime has no {CUDA}, only "
            f"{', '.join(available)}: expected is onnxruntime-gpu, or KIND_CPU."
        )
    if kind not in ("GPU", "AUTO") or CUDA not in available:
        return [(CPU, {})], []
    # A search by trial takes up to 1.6 s for each shape, and ResNet-50 and YOLOv5s were no faster.
    options = {"device_id": str(device_id), "cudnn_conv_algo_search": "HEURISTIC"}
    warnings = []
    for accelerator in accelerators.get("gpu_execution_accelerator") or []:
        if accelerator["name"] == "cuda":
            options |= accelerator.get("parameters") or {}
        elif accelerator["name"] == "tensorrt":
            warnings.append(f"the accelerator 'tensorrt' is left out, and CUDA used; {NATIVE}.")
        else:
            raise _unknown("GPU", accelerator["name"], "'tensorrt' or 'cuda'")
    return [(CUDA, options), (CPU, {})], warnings


def _unknown(kind: str, name: str, expected: str) -> ModelConfigError:
    return ModelConfigError(
        f"the {kind} execution accelerator '{name}' is unknown, but expected is {expected}.",
        "write that, or leave it out",
    )
