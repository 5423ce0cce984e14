"""Mistakes that people make in a model folder, each made in a copy of one that is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tool.commands.new_client import contents

RIGHT = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }} ]
dynamic_batching {{ preferred_batch_size: [ 4, 8 ] }}
"""


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what is to be said about it."""

    name: str  # of the model that has it
    make: Callable[[Path], object]  # makes it in a right model folder
    at: str  # the file in it, and the line where there is one
    words: str  # of the message
    fix: str  # words of the fix
    refused: bool = True  # whether Triton itself refuses the model

    @property
    def where(self) -> str:
        return f"{self.name}/{self.at}"


def write_right(repository: Path, name: str) -> Path:
    """Write a model folder without a mistake."""
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(RIGHT.format(name=name))
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "1" / "model.onnx").write_bytes(contents("x")[Path("x", "1", "model.onnx")])
    return folder


def write_mistake(repository: Path, mistake: Mistake) -> Path:
    """Write a model folder with one mistake."""
    folder = write_right(repository, mistake.name)
    mistake.make(folder)
    return folder


def config(old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "config.pbtxt"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def move(old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / old, folder / new)

    return change


def model(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "1" / "model.onnx").write_bytes(data)


def parameter(key: str, value: str) -> Callable[[Path], object]:
    return config(
        "dynamic", f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\ndynamic'
    )


def accelerated_by(name: str) -> Callable[[Path], object]:
    accelerator = (
        f'execution_accelerators {{ cpu_execution_accelerator: [ {{ name: "{name}" }} ] }}'
    )
    return config("dynamic", f"optimization {{ {accelerator} }}\ndynamic")


def warmed_up_with(tensor: str) -> Callable[[Path], object]:
    sample = f'inputs {{ key: "INPUT" value {{ data_type: TYPE_FP32 {tensor} }} }}'
    return config("dynamic", f"model_warmup [ {{ batch_size: 1 {sample} }} ]\ndynamic")


STEP = (
    'step { model_name: "right" model_version: -1 input_map { key: "INPUT" value: "INPUT" } '
    'output_map { key: "OUTPUT" value: "OUTPUT" } }'
)


def all_of(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [make(folder) for make in makes]


def ensemble() -> Callable[[Path], object]:
    """Make an ensemble of it, which asks the model "right"."""
    return all_of(
        config(
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            f"ensemble_scheduling {{ {STEP} }}",
        ),
        config('backend: "onnxruntime"', 'platform: "ensemble"'),
    )
