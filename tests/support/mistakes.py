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


MISTAKES = [
    # In folders, files and fields.
    Mistake(
        "misspelt",
        config("max_batch_size", "max_batchsize"),
        "config.pbtxt:3",
        'no field named "max_batchsize"',
        "write `max_batch_size` for `max_batchsize`",
    ),
    Mistake(
        "unclosed",
        config('labels.txt" } ]', 'labels.txt" }'),
        "config.pbtxt:6",
        "cannot be read",
        "close every bracket",
    ),
    Mistake(
        "no_such_type",
        config("TYPE_FP32 dims: [ 3 ]", "FP32 dims: [ 3 ]"),
        "config.pbtxt:4",
        "FP32",
        "names and values of Triton",
    ),
    Mistake(
        "other_name",
        config('name: "other_name"', 'name: "different"'),
        "config.pbtxt:1",
        "`name` is \"different\", but the folder is 'other_name'",
        'write name: "other_name"',
    ),
    Mistake(
        "in_the_version",
        move("config.pbtxt", "1/config.pbtxt"),
        "1/config.pbtxt",
        "Triton does not read it",
        "move it up",
        refused=False,
    ),
    Mistake(
        "no_version",
        move("1/model.onnx", "model.onnx"),
        "1",
        "has no model.onnx",
        "put the model's file there",
    ),
    Mistake("v1", move("1", "v1"), "v1", "is no version", "rename it to 1"),
    Mistake("zero_before", move("1", "01"), "01", "is no version", "rename it to 1"),
    Mistake(
        "renamed",
        move("1/model.onnx", "1/resnet50.onnx"),
        "1",
        "has no model.onnx; it has resnet50.onnx",
        "rename resnet50.onnx to model.onnx",
    ),
    Mistake(
        "lfs",
        model(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "1/model.onnx",
        "is a pointer of Git LFS",
        "git lfs pull",
    ),
    Mistake("no_graph", model(b"no graph"), "1/model.onnx", "cannot be served", "again"),
    Mistake("empty", model(b""), "1/model.onnx", "is empty", "fetch it again"),
    Mistake(
        "page",
        model(b"\n<!DOCTYPE html><html>not found"),
        "1/model.onnx",
        "is a page of HTML",
        "fetch it again",
    ),
    Mistake(
        "other_dims",
        config("dims: [ 3 ]", "dims: [ 3, 3 ]"),
        "config.pbtxt",
        "input 'INPUT' has dims [3, 3]",
        "as the file has it",
    ),
    Mistake(
        "no_labels",
        lambda folder: (folder / "labels.txt").unlink(),
        "config.pbtxt:5",
        'is "labels.txt", which is not there',
        "a label in each line",
    ),
    Mistake(
        "label_too_long",
        config("labels.txt", "x" * 300),
        "config.pbtxt:5",
        f'is "{"x" * 300}", which is not there',
        "a label in each line",
    ),
    Mistake(
        "label_too_many",
        config("dims: [ -1 ]", "dims: [ 2 ]"),
        "labels.txt",
        "has 3 lines, but the output `OUTPUT` has 2 classes",
        "give it 2 lines",  # it is refused because the file's output has any number
    ),
    Mistake(
        "parameter",
        parameter("intra_op_thread_count", "abc"),
        "config.pbtxt:6",
        "'intra_op_thread_count' is 'abc', but expected is a whole number",
        "",
    ),
    # In what the engines read.
    Mistake(
        "unknown_engine",
        parameter("engine", "openvin"),
        "config.pbtxt:6",
        "parameter 'engine' is 'openvin', but expected is one of auto, openvino, onnxruntime",
        "leave it out",
    ),
    Mistake(
        "unknown_accelerator",
        accelerated_by("opnvino"),
        "config.pbtxt",
        "the CPU execution accelerator 'opnvino' is unknown, but expected is 'openvino'",
        "write that",
    ),
]

# What only looks like a mistake: Triton takes it, and nothing is said of it, but for `WARNED`.
TAKEN = {
    "version_0": move("1", "0"),
    "octal_count": config("dynamic", "instance_group { count: 01 }\ndynamic"),
    "octal_dims": config("dims: [ 3 ]", "dims: [ 03 ]"),
    "octal_sizes": config("[ 4, 8 ]", "[ 04, 010 ]"),
    "engine_pinned": all_of(parameter("engine", "onnxruntime"), parameter("NUM_STREAMS", "many")),
    "engine_chosen": all_of(accelerated_by("openvino"), parameter("precision", "auto")),
    "hexadecimal": config("dynamic", "version_policy { specific { versions: 0x1 } }\ndynamic"),
}

WARNED = {"version_0": ["cannot be asked for by its number: callers name versions from 1"]}


def without_config(folder: Path) -> None:
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").mkdir()


# Of these Triton dies, so that it must not be asked what it says of them.
DEADLY = [
    Mistake(
        "passive",
        config("dynamic", "instance_group [ { count: 1 passive: true } ]\ndynamic"),
        "config.pbtxt:6",
        "`instance_group.passive` leaves no instance for requests, and crashes Triton",
        "leave it out",
    ),
    Mistake(
        "label_folder",
        config("labels.txt", r"\061"),
        "config.pbtxt:5",
        '`label_filename` is "1", which is no file, and crashes Triton',
        "a label in each line",
    ),
    Mistake(
        "label_dot",
        config("labels.txt", "."),
        "config.pbtxt:5",
        'is ".", which is no file',
        "a label in each line",
    ),
    Mistake(
        "warmup_folder",
        all_of(
            warmed_up_with('dims: [ 3 ] input_data_file: "x"'),
            lambda folder: (folder / "warmup" / "x").mkdir(parents=True),
        ),
        "config.pbtxt:6",
        'input_data_file` is "x", which is no file in warmup/',
        "name one",
    ),
    Mistake(
        "warmup_huge",
        warmed_up_with("dims: [ 1000000, 1000000 ] zero_data: true"),
        "config.pbtxt:6",
        "dims` and batch_size make more than 2,147,483,648 numbers",
        "write smaller ones",
    ),
    Mistake(
        "warmup_batch",
        config("dynamic", "model_warmup [ { batch_size: 9 } ]\ndynamic"),
        "config.pbtxt:6",
        "`model_warmup.batch_size` is 9, but max_batch_size is 8",
        "write at most 8",
    ),
    Mistake(
        "config_folder",
        without_config,
        "config.pbtxt",
        "is a folder, and crashes Triton",
        "put the file there",
    ),
]
