"""ONNX Runtime's execution providers, in the native backend's spellings.

https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.model_config import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Provider = tuple[str, dict[str, str]]

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

_PRECISIONS = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}


def execution_providers(
    config: Mapping[str, Any], kind: str, device_id: int, available: Collection[str]
) -> tuple[list[Provider], list[str]]:
    """Return the providers with options, by preference, and warnings.

    `kind` is the instance's, `CPU`, `GPU`, `AUTO` or `MODEL`; `available` are the providers of
    the installed ONNX Runtime. An accelerator that it lacks costs a warning, and the next
    provider takes its place.

    Raises ModelConfigError: the instance is of kind GPU and there is no provider for CUDA, or an
    accelerator or one of its parameters is not known.
    """
    accelerators = (config.get("optimization") or {}).get("execution_accelerators") or {}
    providers: list[Provider] = []
    warnings: list[str] = []

    def add(name: str, options: dict[str, str], accelerator: str) -> None:
        if name in available:
            providers.append((name, options))
        else:
            warnings.append(
                f"the accelerator '{accelerator}' is left out: the installed ONNX Runtime has no "
                f"{name}, only {', '.join(available)}."
            )

    if kind == "GPU" and CUDA not in available:
        raise ModelConfigError(
            f"the instance is of kind KIND_GPU, but the installed ONNX Runtime has no {CUDA}, only "
            f"{', '.join(available)}: expected is onnxruntime-gpu, or KIND_CPU."
        )
    if kind == "GPU" or (kind == "AUTO" and CUDA in available):
        cuda = {}
        for accelerator in accelerators.get("gpu_execution_accelerator") or []:
            options = accelerator.get("parameters") or {}
            if accelerator["name"] == "tensorrt":
                options = {**_tensorrt_options(options), "device_id": str(device_id)}
                add(TENSORRT, options, "tensorrt")
            elif accelerator["name"] == "cuda":
                cuda = dict(options)
            else:
                raise _unknown("GPU", accelerator["name"], "'tensorrt' or 'cuda'")
        providers.append((CUDA, {**cuda, "device_id": str(device_id)}))
    for accelerator in accelerators.get("cpu_execution_accelerator") or []:
        if accelerator["name"] != "openvino":
            raise _unknown("CPU", accelerator["name"], "'openvino'")  # no provider: its own engine
    return [*providers, (CPU, {})], warnings


def _unknown(kind: str, name: str, expected: str) -> ModelConfigError:
    return ModelConfigError(
        f"the {kind} execution accelerator '{name}' is unknown, but expected is {expected}.",
        "write that, or leave it out",
    )


def _tensorrt_options(given: Mapping[str, str]) -> dict[str, str]:
    options = {_TENSORRT_RENAMED.get(key, key): text for key, text in given.items()}
    if precision := options.pop("precision_mode", ""):
        if precision not in _PRECISIONS:
            raise ModelConfigError(
                f"parameter 'precision_mode' of the accelerator 'tensorrt' is '{precision}', but "
                f"expected is one of {', '.join(_PRECISIONS)}."
            )
        options |= _PRECISIONS[precision]
    return options
