"""Finds what a model's configuration asks of a GPU.

Without a GPU Triton 2.51 refuses KIND_GPU, lists of GPUs and engines of TensorRT.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.config_text import Field, line_of, read_if_right
from clients.model_files.files import text_of

CONFIG = "config.pbtxt"
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Rule:
    """What a key of a configuration asks of a GPU."""

    what: str  # what is wrong with it where there is no GPU
    fix: str  # how to mend it
    values: tuple[str, ...] = ()  # those values that ask for a GPU; none means all


TENSORRT = Rule(
    "is for TensorRT, whose engines run only on a GPU of the kind that they were built for, in the "
    "TensorRT backend, which NVIDIA's image of Triton has",
    "start that image with `--gpus all`, or serve the ONNX file that the engine was built from, "
    'with backend: "onnxruntime"',
    values=("tensorrt", "tensorrt_plan"),
)
RULES = {
    "backend": TENSORRT,
    "platform": TENSORRT,
    "instance_group.kind": Rule(
        "is KIND_GPU, but this machine has no GPU; Triton refuses that",
        "write KIND_AUTO, which is a GPU where there is one, else the CPU",
        values=("KIND_GPU",),
    ),
    "instance_group.gpus": Rule(
        "names GPUs, but this machine has none; Triton refuses that",
        "leave it out, with KIND_AUTO, which takes every GPU, else the CPU",
    ),
}


@dataclass(frozen=True)
class GpuSetting:
    """Something that a configuration asks of a GPU: its key, its place, its line, its rule."""

    key: str
    field: Field
    line: int
    rule: Rule

    def __str__(self) -> str:
        return f"{CONFIG}:{self.line} `{self.key}` {self.rule.what}: {self.rule.fix}"


def has_gpu() -> bool:
    """Whether this machine, or container, has a GPU that Triton could use."""
    return any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()


def gpu_settings(text: str) -> list[GpuSetting]:
    """Return what a configuration asks of a GPU, in the order of the text.

    Nothing is found in a text that cannot be read: Triton says what is wrong with it.
    """
    message = read_if_right(text)
    found = {}  # by their places: `[0, 1]` is two fields at one place
    for key, rule in RULES.items():
        outer, _, name = key.rpartition(".")
        for one in message.messages(outer) if outer else [message]:
            for field in one.all(name):
                if not rule.values or field.value in rule.values:
                    found[field.start] = GpuSetting(key, field, line_of(text, field), rule)
    return [found[start] for start in sorted(found)]


def gpu_settings_of(folder: Path) -> list[GpuSetting]:
    """Return what the configuration in a model's folder asks of a GPU."""
    with suppress(OSError, UnicodeDecodeError):  # there is none, or Triton says what is wrong
        return gpu_settings(text_of(folder / CONFIG))
    return []
