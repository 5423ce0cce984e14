"""Finds what a model's configuration asks of a GPU, and adapts it to a machine without one.

Without a GPU Triton 2.51 refuses KIND_GPU, lists of GPUs and engines of TensorRT; accelerators, the
options of CUDA and secondary devices it passes over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.repository.config_text import Field, Message, NotReadable, line_of, read
from clients.repository.files import text_of

CONFIG = "config.pbtxt"
DEVICES = Path("/dev")

TENSORRT = ("tensorrt", "tensorrt_plan")
ADAPT = "or set GPU_CONFIGS=adapt"
OF_CUDA = ("cuda", "input_pinned_memory", "output_pinned_memory")


@dataclass(frozen=True)
class GpuSetting:
    """Something that a configuration asks of a GPU.

    Args:
        key: the key in the configuration.
        field: its place in the text.
        line: its line, counted from 1.
        what: what is wrong with it where there is no GPU.
        fix: how to mend it.
        change: what it becomes on a CPU, in words; empty where it cannot be adapted.
        text: what it becomes on a CPU, in the configuration.

    """

    key: str
    field: Field
    line: int
    what: str
    fix: str
    change: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{CONFIG}:{self.line} `{self.key}` {self.what}: {self.fix}"


def has_gpu() -> bool:
    """Whether this machine, or container, has a GPU that Triton could use."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()


def gpu_settings(text: str) -> list[GpuSetting]:
    """Return what a configuration asks of a GPU, in the order of the text.

    Nothing is found in a text that cannot be read: Triton says what is wrong with it.
    """
    try:
        message = read(text)
    except NotReadable:
        return []
    found = {one.field.start: one for one in found_in(message, text)}  # `[0, 1]` is two fields
    return [found[start] for start in sorted(found)]


def gpu_settings_of(folder: Path) -> list[GpuSetting]:
    """Return what the configuration in a model's folder asks of a GPU."""
    try:
        return gpu_settings(text_of(folder / CONFIG))
    except (OSError, UnicodeDecodeError):  # there is none, or Triton says what is wrong with it
        return []


def found_in(message: Message, text: str) -> Iterator[GpuSetting]:
    def ignored(key: str, field: Field) -> GpuSetting:
        what, fix = "has no effect, for this machine has no GPU", f"leave it out, {ADAPT}"
        return GpuSetting(key, field, line_of(text, field), what, fix, "is left out")

    for name in ("backend", "platform"):
        for field in message.all(name):
            if field.value in TENSORRT:
                yield GpuSetting(
                    name,
                    field,
                    line_of(text, field),
                    f'is "{field.value}", but an engine of TensorRT runs on a GPU of the kind that '
                    "it was built for, in the TensorRT backend of NVIDIA's image of Triton",
                    "start that image with `--gpus all`, or serve the ONNX file that the engine "
                    'was built from, with backend: "onnxruntime"',
                )
    for group in message.messages("instance_group"):
        for field in group.all("kind"):
            if field.value == "KIND_GPU":
                yield GpuSetting(
                    "instance_group.kind",
                    field,
                    line_of(text, field),
                    "is KIND_GPU, but this machine has no GPU; Triton refuses that",
                    f"write KIND_AUTO, which is a GPU where there is one, else the CPU, {ADAPT}",
                    "is KIND_CPU instead of KIND_GPU",
                    "kind: KIND_CPU",
                )
        for field in group.all("gpus"):
            yield GpuSetting(
                "instance_group.gpus",
                field,
                line_of(text, field),
                "names GPUs, but this machine has none; Triton refuses that",
                f"leave it out, with KIND_AUTO, which means every GPU or else the CPU, {ADAPT}",
                "is left out",
            )
        for field in group.all("secondary_devices"):
            yield ignored("instance_group.secondary_devices", field)
    for optimization in message.messages("optimization"):
        for name in OF_CUDA:
            for field in optimization.all(name):
                yield ignored(f"optimization.{name}", field)
        for accelerators in optimization.messages("execution_accelerators"):
            for field in accelerators.all("gpu_execution_accelerator"):
                key = "optimization.execution_accelerators.gpu_execution_accelerator"
                yield ignored(key, field)


def adapted(text: str) -> str:
    """Return a configuration for a machine without a GPU; the same where nothing changes."""
    for one in reversed(gpu_settings(text)):
        if one.change:
            text = text[: one.field.start] + one.text + text[one.field.end :]
    return text
