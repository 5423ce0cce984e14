"""Mistakes that people make in a model folder, each made in a copy of one that is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tool.new_client import contents

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
    """A mistake, and what is to be said about it.

    Args:
        name: of the model that has it.
        make: makes it in a right model folder.
        where: the file, and the line where there is one.
        words: of the message.
        fix: words of the fix.
        refused: whether Triton itself refuses the model.

    """

    name: str
    make: Callable[[Path], object]
    where: str
    words: str
    fix: str
    refused: bool = True


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


def warmed_up_with(tensor: str, name: str = "INPUT") -> Callable[[Path], object]:
    sample = f'inputs {{ key: "{name}" value {{ data_type: TYPE_FP32 {tensor} }} }}'
    return config("dynamic", f"model_warmup [ {{ batch_size: 1 {sample} }} ]\ndynamic")


STEP = (
    'step { model_name: "right" model_version: -1 input_map { key: "INPUT" value: "INPUT" } '
    'output_map { key: "OUTPUT" value: "OUTPUT" } }'
)


def ensemble(step: str = STEP, platform: str = 'platform: "ensemble"') -> Callable[[Path], object]:
    """Make an ensemble of it, which asks the model "right"."""

    def change(folder: Path) -> None:
        config(
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            f"ensemble_scheduling {{ {step} }}",
        )(folder)
        config('backend: "onnxruntime"', platform)(folder)

    return change


MISTAKES = [
    Mistake(
        "misspelt",
        config("max_batch_size", "max_batchsize"),
        "misspelt/config.pbtxt:3",
        'no field named "max_batchsize"',
        "write `max_batch_size` for `max_batchsize`",
    ),
    Mistake(
        "unclosed",
        config('labels.txt" } ]', 'labels.txt" }'),
        "unclosed/config.pbtxt:6",
        "cannot be read",
        "close every bracket",
    ),
    Mistake(
        "no_such_type",
        config("TYPE_FP32 dims: [ 3 ]", "FP32 dims: [ 3 ]"),
        "no_such_type/config.pbtxt:4",
        "FP32",
        "model configuration",
    ),
    Mistake(
        "other_name",
        config('name: "other_name"', 'name: "different"'),
        "other_name/config.pbtxt:1",
        "`name` is \"different\", but the folder is 'other_name'",
        'write name: "other_name"',
    ),
    Mistake(
        "platform",
        config('backend: "onnxruntime"', 'platform: "onnxruntime"'),
        "platform/config.pbtxt:2",
        '`platform` is "onnxruntime", which is the name of a backend',
        'write backend: "onnxruntime"',
    ),
    Mistake(
        "in_the_version",
        move("config.pbtxt", "1/config.pbtxt"),
        "in_the_version/1/config.pbtxt",
        "nobody reads it",
        "move it up",
        refused=False,
    ),
    Mistake(
        "no_version",
        move("1/model.onnx", "model.onnx"),
        "no_version/1",
        "has no model.onnx",
        "put the model's file there",
    ),
    Mistake(
        "v1",
        move("1", "v1"),
        "v1/v1",
        "is no version",
        "rename it to 1",
    ),
    Mistake(
        "renamed",
        move("1/model.onnx", "1/resnet50.onnx"),
        "renamed/1",
        "has no model.onnx; it has resnet50.onnx",
        "rename resnet50.onnx to model.onnx",
    ),
    Mistake(
        "policy",
        config("dynamic", "version_policy: { specific: { versions: [ 2 ] } }\ndynamic"),
        "policy/config.pbtxt:6",
        "names 2, which is not there",
        "there are 1",
    ),
    Mistake(
        "lfs",
        model(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "lfs/1/model.onnx",
        "is a pointer of Git LFS",
        "git lfs pull",
    ),
    Mistake(
        "no_graph", model(b"no graph"), "no_graph/1/model.onnx", "is no model of ONNX", "again"
    ),
    Mistake("empty", model(b""), "empty/1/model.onnx", "is empty", "fetch it again"),
    Mistake(
        "page",
        model(b"\n<!DOCTYPE html><html>not found"),
        "page/1/model.onnx",
        "is a page of HTML",
        "fetch it again",
    ),
    Mistake(
        "other_dims",
        config("dims: [ 3 ]", "dims: [ 3, 3 ]"),
        "other_dims/config.pbtxt",
        "input 'INPUT' has dims [3, 3]",
        "as the file has it",
    ),
    Mistake(
        "ragged",
        config("dims: [ 3 ]", "dims: [ 3 ] allow_ragged_batch: true"),
        "ragged/config.pbtxt",
        "input 'INPUT' has allow_ragged_batch",
        "as the file has it",
    ),
    Mistake(
        "other_type",
        config("TYPE_FP32 dims: [ 3 ]", "TYPE_INT64 dims: [ 3 ]"),
        "other_type/config.pbtxt",
        "input 'INPUT' is TYPE_INT64 in the configuration, but TYPE_FP32 in the file",
        "as the file has it",
    ),
    Mistake(
        "other_input",
        config('name: "INPUT"', 'name: "images"'),
        "other_input/config.pbtxt",
        "input 'images'",
        "as the file has it",
    ),
    Mistake(
        "preferred",
        config("[ 4, 8 ]", "[ 4, 16 ]"),
        "preferred/config.pbtxt:6",
        "is 16, but max_batch_size is 8",
        "from 1 to 8",
    ),
    Mistake(
        "unbatched",
        config("max_batch_size: 8", "max_batch_size: 0"),
        "unbatched/config.pbtxt:6",
        "is 4, but max_batch_size is 0",
        "leave it out",
    ),
    Mistake(
        "negative",
        config("max_batch_size: 8", "max_batch_size: -1"),
        "negative/config.pbtxt:3",
        "is -1",
        "write 0",
    ),
    Mistake(
        "no_labels",
        lambda folder: (folder / "labels.txt").unlink(),
        "no_labels/config.pbtxt:5",
        'is "labels.txt", which is not there',
        "a label in each line",
    ),
    Mistake(
        "label_too_long",
        config("labels.txt", "x" * 300),
        "label_too_long/config.pbtxt:5",
        f'is "{"x" * 300}", which is not there',
        "a label in each line",
    ),
    Mistake(
        "file_too_long",
        config("dynamic", f'default_model_filename: "{"x" * 300}"\ndynamic'),
        "file_too_long/1",
        f"has no {'x' * 300}",
        "put the model's file there",
    ),
    Mistake(
        "label_too_many",
        config("dims: [ -1 ]", "dims: [ 2 ]"),
        "label_too_many/labels.txt",
        "has 3 lines, but the output `OUTPUT` has 2 classes",
        "give it 2 lines",  # it is refused because the file's output has any number
    ),
    Mistake(
        "untyped",
        config("data_type: TYPE_FP32 dims: [ 3 ]", "dims: [ 3 ]"),
        "untyped/config.pbtxt:4",
        "`input.data_type` is missing in an input",
        "data_type: TYPE_FP32",
    ),
    Mistake(
        "unnamed",
        config('name: "OUTPUT"', ""),
        "unnamed/config.pbtxt:5",
        "`output.name` is missing in an output",
        'name: "x"',
    ),
    Mistake(
        "no_dims",
        config("dims: [ 3 ]", ""),
        "no_dims/config.pbtxt:4",
        "`input.dims` is missing in an input",
        "dims: [ 3 ]",
    ),
    Mistake(
        "parameter",
        config(
            "dynamic",
            'parameters { key: "intra_op_thread_count" value { string_value: "abc" } }\ndynamic',
        ),
        "parameter/config.pbtxt",
        "'intra_op_thread_count' is 'abc', but expected is a whole number",
        "",
    ),
    Mistake(
        "nchw",
        config("dims: [ 3 ]", "dims: [ 3 ] format: FORMAT_NCHW"),
        "nchw/config.pbtxt:4",
        "`input.format` is FORMAT_NCHW, but there are 1 dims, not 3",
        "leave it out",
    ),
    Mistake(
        "gpus",
        config("dynamic", "instance_group { kind: KIND_CPU gpus: [ 0 ] }\ndynamic"),
        "gpus/config.pbtxt:6",
        "`instance_group.gpus` stands beside KIND_CPU",
        "leave it out",
    ),
    Mistake(
        "reshaped",
        config("dims: [ 3 ]", "dims: [ 3 ] reshape: { shape: [ 2, 2 ] }"),
        "reshaped/config.pbtxt:4",
        "`input.reshape` to [2, 2] has not as many elements as dims [3]",
        "a shape of as many",
    ),
    Mistake(
        "warmup_name",
        warmed_up_with("dims: [ 3 ] zero_data: true", "Q"),
        "warmup_name/config.pbtxt:6",
        '`model_warmup.inputs.key` is "Q", which the model has not',
        "it has INPUT",
    ),
    Mistake(
        "warmup_file",
        warmed_up_with('dims: [ 3 ] input_data_file: "x"'),
        "warmup_file/config.pbtxt:6",
        'input_data_file` is "x", which is not in warmup/',
        "put it there",
    ),
    Mistake(
        "no_steps",
        ensemble(""),
        "no_steps/config.pbtxt:2",
        "`ensemble_scheduling.step` is missing",
        "one for each model",
    ),
    Mistake(
        "strange_step",
        ensemble(STEP.replace("right", "gone")),
        "strange_step/config.pbtxt:6",
        '`ensemble_scheduling.step.model_name` is "gone", which is not there',
        "beside this one",
    ),
    Mistake(
        "no_platform",
        ensemble(platform=""),
        "no_platform/config.pbtxt:6",
        "`platform` is missing",
        'platform: "ensemble"',
    ),
    Mistake(
        "ensemble_backend",
        ensemble(platform='platform: "ensemble" backend: "onnxruntime"'),
        "ensemble_backend/config.pbtxt:2",
        "`backend` is of no use to an ensemble",
        "leave it out",
    ),
    Mistake(
        "ensemble_instances",
        ensemble(platform='platform: "ensemble" instance_group { count: 1 }'),
        "ensemble_instances/config.pbtxt:2",
        "`instance_group` is of no use to an ensemble",
        "leave it out",
    ),
]


# What only looks like a mistake: Triton takes it, and nothing is said of it.
TAKEN = {
    "octal_count": config("dynamic", "instance_group { count: 01 }\ndynamic"),
    "octal_dims": config("dims: [ 3 ]", "dims: [ 03 ]"),
    "octal_sizes": config("[ 4, 8 ]", "[ 04, 010 ]"),
    "hexadecimal": config("dynamic", "version_policy { specific { versions: 0x1 } }\ndynamic"),
}


def without_config(folder: Path) -> None:
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").mkdir()


# Of these Triton dies, so that it must not be asked what it says of them.
DEADLY = [
    Mistake(
        "passive",
        config("dynamic", "instance_group [ { count: 1 passive: true } ]\ndynamic"),
        "passive/config.pbtxt:6",
        "`instance_group.passive` leaves no instance for requests, over which Triton ends",
        "leave it out",
    ),
    Mistake(
        "label_folder",
        config("labels.txt", r"\061"),
        "label_folder/config.pbtxt:5",
        '`label_filename` is "1", which is no file, over which Triton ends',
        "a label in each line",
    ),
    Mistake(
        "label_dot",
        config("labels.txt", "."),
        "label_dot/config.pbtxt:5",
        'is ".", which is no file',
        "a label in each line",
    ),
    Mistake(
        "warmup_folder",
        lambda folder: (
            warmed_up_with('dims: [ 3 ] input_data_file: "x"')(folder),
            (folder / "warmup" / "x").mkdir(parents=True),
        ),
        "warmup_folder/config.pbtxt:6",
        'input_data_file` is "x", which is no file in warmup/',
        "name one",
    ),
    Mistake(
        "warmup_unnamed",
        lambda folder: (
            warmed_up_with('dims: [ 3 ] input_data_file: ""')(folder),
            (folder / "warmup").mkdir(),
        ),
        "warmup_unnamed/config.pbtxt:6",
        'input_data_file` is "", which is no file in warmup/',
        "name one",
    ),
    Mistake(
        "warmup_huge",
        warmed_up_with("dims: [ 1000000, 1000000 ] zero_data: true"),
        "warmup_huge/config.pbtxt:6",
        "dims` and batch_size make more than 2,147,483,648 numbers",
        "write smaller ones",
    ),
    Mistake(
        "warmup_batch",
        config("dynamic", "model_warmup [ { batch_size: 9 } ]\ndynamic"),
        "warmup_batch/config.pbtxt:6",
        "`model_warmup.batch_size` is 9, but max_batch_size is 8",
        "write at most 8",
    ),
    Mistake(
        "config_folder",
        without_config,
        "config_folder/config.pbtxt",
        "is a folder, over which Triton ends",
        "put the file there",
    ),
]
