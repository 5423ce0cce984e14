"""Mistakes that people make in a model folder, each made in a copy of one that is right."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import openvino
from openvino import opset13 as opset

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


def parameter(key: str, value: str) -> Callable[[Path], object]:
    return config(
        "dynamic", f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\ndynamic'
    )


def accelerated_by(name: str) -> Callable[[Path], object]:
    accelerator = (
        f'execution_accelerators {{ cpu_execution_accelerator: [ {{ name: "{name}" }} ] }}'
    )
    return config("dynamic", f"optimization {{ {accelerator} }}\ndynamic")


def ir(*names: str, cut: int | None = None) -> Callable[[Path], object]:
    """Make it a model of OpenVINO.

    Args:
        names: of the files that stay in the version folder; none means both of the model.
        cut: how many bytes of the first of them stay.

    """

    def change(folder: Path) -> None:
        file = folder / "1" / "model.onnx"
        given = opset.parameter([-1, 3], openvino.Type.f32, name="INPUT")
        given.output(0).set_names({"INPUT"})
        added = opset.add(given, opset.constant([[1.0, 2.0, 3.0]], openvino.Type.f32))
        added.output(0).set_names({"OUTPUT"})
        model = openvino.Model([added], [given], "added")
        openvino.save_model(model, file.with_suffix(".xml"), compress_to_fp16=False)
        config('backend: "onnxruntime"', 'backend: "openvino"')(folder)
        config("dims: [ -1 ]", "dims: [ 3 ]")(folder)
        names_left = names or ("model.xml", "model.bin")
        for path in file.parent.iterdir():
            if path.name not in names_left:
                path.unlink()
        if cut is not None:
            first = file.parent / names_left[0]
            first.write_bytes(first.read_bytes()[:cut])

    return change


def warmed_up_with(
    tensor: str, name: str = "INPUT", type_: str = "TYPE_FP32", batch_size: int = 1
) -> Callable[[Path], object]:
    sample = f'inputs {{ key: "{name}" value {{ data_type: {type_} {tensor} }} }}'
    return config("dynamic", f"model_warmup [ {{ batch_size: {batch_size} {sample} }} ]\ndynamic")


def controlled(control: str) -> Callable[[Path], object]:
    return config(
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
        f'sequence_batching {{ control_input {{ name: "START" control {{ {control} }} }} }}',
    )


def torchscript(text: str | None) -> Callable[[Path], object]:
    """Make it a model of TorchScript, with this configuration or none."""

    def change(folder: Path) -> None:
        (folder / "1" / "model.onnx").unlink()
        (folder / "1" / "model.pt").write_bytes(b"PK\3\4")
        (folder / "config.pbtxt").unlink()
        if text is not None:
            (folder / "config.pbtxt").write_text(text)

    return change


STEP = (
    'step { model_name: "right" model_version: -1 input_map { key: "INPUT" value: "INPUT" } '
    'output_map { key: "OUTPUT" value: "OUTPUT" } }'
)


def mapping(step: str, taken: str, made: str) -> str:
    """Return a step with other tensors of the ensemble."""
    return step.replace('value: "INPUT"', f'value: "{taken}"').replace(
        'value: "OUTPUT"', f'value: "{made}"'
    )


def beside(name: str) -> Callable[[Path], object]:
    """Write a model that does not batch beside it."""

    def write(folder: Path) -> None:
        other = write_right(folder.parent, name)
        config("dynamic_batching { preferred_batch_size: [ 4, 8 ] }", "")(other)
        config("max_batch_size: 8", "max_batch_size: 0")(other)
        config("dims: [ 3 ]", "dims: [ -1, 3 ]")(other)
        config("dims: [ -1 ]", "dims: [ -1, -1 ]")(other)

    return write


def all_of(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [make(folder) for make in makes]


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
    *(
        Mistake(
            name,
            config("max_batch_size: 8", f"max_batch_size: {number}"),
            f"{name}/config.pbtxt:3",
            f"'{number}' is no number",
            "write its digits alone",
        )
        for name, number in (
            ("underscored", "1_0"),
            ("binary", "0b11"),
            ("with_a_plus", "+4"),
            ("other_digits", "\u0664"),
        )
    ),
    Mistake(
        "no_such_type",
        config("TYPE_FP32 dims: [ 3 ]", "FP32 dims: [ 3 ]"),
        "no_such_type/config.pbtxt:4",
        "FP32",
        "write `TYPE_FP32` for `FP32`",
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
        "zero_before",
        move("1", "01"),
        "zero_before/01",
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
    Mistake("no_graph", model(b"no graph"), "no_graph/1/model.onnx", "cannot be served", "again"),
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
        "leave allow_ragged_batch out",
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
        "parameter/config.pbtxt:6",
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
    Mistake(
        "zero_dims",
        config("dims: [ 3 ]", "dims: [ 0 ]"),
        "zero_dims/config.pbtxt:4",
        "`input.dims` is 0",
        "-1 where the size varies",
    ),
    Mistake(
        "negative_dims",
        config("dims: [ -1 ]", "dims: [ -2 ]"),
        "negative_dims/config.pbtxt:5",
        "`output.dims` is -2",
        "-1 where the size varies",
    ),
    Mistake(
        "invalid_type",
        config("TYPE_FP32 dims: [ 3 ]", "TYPE_INVALID dims: [ 3 ]"),
        "invalid_type/config.pbtxt:4",
        "`input.data_type` is missing",
        "TYPE_FP32",
    ),
    Mistake(
        "reshaped_varying",
        config("dims: [ 3 ]", "dims: [ -1, 2 ] reshape { shape: [ -1 ] }"),
        "reshaped_varying/config.pbtxt:4",
        "`input.reshape` to [-1] has not as many elements as dims [-1, 2]",
        "a shape of as many",
    ),
    Mistake(
        "no_specific_version",
        config("dynamic", "version_policy { specific { } }\ndynamic"),
        "no_specific_version/config.pbtxt:6",
        "`version_policy.specific.versions` is missing",
        "there are 1",
    ),
    Mistake(
        "priorities",
        config("8 ] }", "8 ] priority_levels: 2 }"),
        "priorities/config.pbtxt:6",
        "`dynamic_batching.default_priority_level` is 0, but priority_levels is 2",
        "from 1 to 2",
    ),
    Mistake(
        "beyond_priorities",
        config("8 ] }", "8 ] priority_levels: 2 default_priority_level: 3 }"),
        "beyond_priorities/config.pbtxt:6",
        "is 3, but priority_levels is 2",
        "from 1 to 2",
    ),
    Mistake(
        "warmup_lacking",
        config("dynamic", "model_warmup { batch_size: 1 }\ndynamic"),
        "warmup_lacking/config.pbtxt:6",
        '`model_warmup.inputs` has none for the input "INPUT"',
        "write it",
    ),
    Mistake(
        "warmup_type",
        warmed_up_with("dims: [ 3 ] zero_data: true", type_="TYPE_INT64"),
        "warmup_type/config.pbtxt:6",
        "`model_warmup.inputs.data_type` is TYPE_INT64, and the input is TYPE_FP32",
        "write TYPE_FP32",
    ),
    Mistake(
        "warmup_dims",
        warmed_up_with("dims: [ 4 ] zero_data: true"),
        "warmup_dims/config.pbtxt:6",
        "`model_warmup.inputs.dims` is [4], and the input has [3]",
        "as the input has them",
    ),
    Mistake(
        "warmup_varying",
        warmed_up_with("dims: [ -1 ] zero_data: true"),
        "warmup_varying/config.pbtxt:6",
        "`model_warmup.inputs.dims` is -1",
        "how many are to be sent",
    ),
    Mistake(
        "warmup_without_data",
        warmed_up_with("dims: [ 3 ]"),
        "warmup_without_data/config.pbtxt:6",
        "`model_warmup.inputs` has no data",
        "zero_data: true",
    ),
    Mistake(
        "torchscript_bare",
        torchscript(None),
        "torchscript_bare/1/model.pt",
        "is TorchScript, which holds no shapes, and no input is configured",
        "list every input",
    ),
    Mistake(
        "torchscript_unlisted",
        torchscript('backend: "pytorch"\nmax_batch_size: 8\n'),
        "torchscript_unlisted/1/model.pt",
        "is TorchScript, which holds no shapes, and no input is configured",
        "list every input",
    ),
    Mistake(
        "step_without_inputs",
        ensemble(STEP.replace('input_map { key: "INPUT" value: "INPUT" }', "")),
        "step_without_inputs/config.pbtxt:6",
        "`ensemble_scheduling.step.input_map` is missing",
        "write it",
    ),
    Mistake(
        "step_without_outputs",
        ensemble(STEP.replace('output_map { key: "OUTPUT" value: "OUTPUT" }', "")),
        "step_without_outputs/config.pbtxt:6",
        "`ensemble_scheduling.step.output_map` is missing",
        "write it",
    ),
    Mistake(
        "step_without_version",
        ensemble(STEP.replace("model_version: -1", "")),
        "step_without_version/config.pbtxt:6",
        "`ensemble_scheduling.step.model_version` is missing",
        "model_version: -1",
    ),
    Mistake(
        "step_of_itself",
        ensemble(STEP.replace("right", "step_of_itself")),
        "step_of_itself/config.pbtxt:6",
        "`ensemble_scheduling.step.model_name` is the ensemble itself",
        "another model",
    ),
    Mistake(
        "input_of_no_step",
        all_of(
            ensemble(),
            config("output [", 'input [ { name: "x" data_type: TYPE_FP32 dims: 3 } ] output ['),
        ),
        "input_of_no_step/config.pbtxt:5",
        '`input` "x" is taken by no step',
        "in an input_map",
    ),
    Mistake(
        "output_of_no_step",
        all_of(
            ensemble(),
            config("output [", 'output [ { name: "x" data_type: TYPE_FP32 dims: 3 } ] output ['),
        ),
        "output_of_no_step/config.pbtxt:5",
        '`output` "x" is made by no step',
        "in an output_map",
    ),
    Mistake(
        "two_steps_make_one",
        ensemble(STEP + STEP),
        "two_steps_make_one/config.pbtxt:6",
        '`ensemble_scheduling.step.output_map` makes "OUTPUT", which another step makes, too',
        "a name of its own",
    ),
    Mistake(
        "warmed_up_ensemble",
        all_of(warmed_up_with("dims: [ 3 ] zero_data: true"), ensemble()),
        "warmed_up_ensemble/config.pbtxt:6",
        "`model_warmup` is of no use to an ensemble",
        "leave it out",
    ),
    Mistake(
        "step_of_another_type",
        all_of(ensemble(), config("TYPE_FP32 dims: [ 3 ]", "TYPE_INT64 dims: [ 3 ]")),
        "step_of_another_type/config.pbtxt:6",
        '`ensemble_scheduling.step.input_map` has "INPUT" as TYPE_FP32, and it is TYPE_INT64',
        "of one type",
    ),
    Mistake(
        "step_of_another_input",
        ensemble(STEP.replace('key: "INPUT"', 'key: "x"')),
        "step_of_another_input/config.pbtxt:6",
        '`ensemble_scheduling.step.input_map` names the input "x", which right has not',
        "it has INPUT",
    ),
    Mistake(
        "step_of_a_smaller_batch",
        all_of(ensemble(), config("max_batch_size: 8", "max_batch_size: 9")),
        "step_of_a_smaller_batch/config.pbtxt:6",
        "`max_batch_size` is 9, but that of right is 8",
        "at most 8",
    ),
    Mistake(
        "made_by_no_step",
        ensemble(mapping(STEP, "INPUT", "y") + mapping(STEP, "x", "OUTPUT")),
        "made_by_no_step/config.pbtxt:6",
        '`ensemble_scheduling.step.input_map` takes "x", which no step makes',
        "what another step makes",
    ),
    Mistake(
        "taken_by_no_step",
        ensemble(STEP + mapping(STEP, "INPUT", "y")),
        "taken_by_no_step/config.pbtxt:6",
        '`ensemble_scheduling.step.output_map` makes "y", which no step takes',
        "leave it out",
    ),
    Mistake(
        "reshaped_to_nothing",
        all_of(
            config("dynamic_batching { preferred_batch_size: [ 4, 8 ] }", ""),
            config("max_batch_size: 8", "max_batch_size: 0"),
            config("dims: [ 3 ]", "dims: [ 1 ] reshape { }"),
        ),
        "reshaped_to_nothing/config.pbtxt:4",
        "`input.reshape` to no dimensions at all is for models that batch",
        "leave it out",
    ),
    Mistake(
        "unknown_engine",
        parameter("engine", "openvin"),
        "unknown_engine/config.pbtxt:6",
        "parameter 'engine' is 'openvin', but expected is one of auto, openvino, onnxruntime",
        "leave it out",
    ),
    Mistake(
        "unknown_precision",
        parameter("precision", "bf16"),
        "unknown_precision/config.pbtxt:6",
        "parameter 'precision' is 'bf16', but expected is one of exact, auto",
        'write "auto"',
    ),
    Mistake(
        "unknown_accelerator",
        accelerated_by("opnvino"),
        "unknown_accelerator/config.pbtxt",
        "the CPU execution accelerator 'opnvino' is unknown, but expected is 'openvino'",
        "write that",
    ),
    Mistake(
        "streams_of_onnx",
        parameter("NUM_STREAMS", "many"),
        "streams_of_onnx/config.pbtxt:6",
        "parameter 'NUM_STREAMS' is 'many', but expected is a whole number",
        "",
    ),
    Mistake(
        "ir_hint",
        all_of(ir(), parameter("PERFORMANCE_HINT", "fast")),
        "ir_hint/config.pbtxt:6",
        "parameter 'PERFORMANCE_HINT' is 'fast', but expected is LATENCY or THROUGHPUT",
        "write that",
    ),
    Mistake(
        "ir_reshaped",
        all_of(ir(), parameter("RESHAPE_IO_LAYERS", "yes")),
        "ir_reshaped/config.pbtxt:6",
        "parameter 'RESHAPE_IO_LAYERS' is 'yes', but expected is nothing",
        "leave it out",
    ),
    Mistake(
        "ir_precision",
        all_of(ir(), parameter("precision", "bf16")),
        "ir_precision/config.pbtxt:6",
        "parameter 'precision' is 'bf16'",
        "leave it out",
    ),
    Mistake(
        "ir_without_weights",
        ir("model.xml"),
        "ir_without_weights/1/model.xml",
        "model.bin', but there is no such file",
        "put it there",
    ),
    Mistake(
        "ir_cut",
        ir("model.xml", "model.bin", cut=300),
        "ir_cut/1/model.xml",
        "cannot be served: OpenVINO cannot open",
        "save it again with openvino.save_model",
    ),
    Mistake(
        "ir_weights_cut",
        ir("model.bin", "model.xml", cut=8),
        "ir_weights_cut/1/model.xml",
        "Incorrect weights in bin file",
        "copy 'model.bin' again",
    ),
    Mistake(
        "ir_of_text",
        all_of(ir(), lambda folder: (folder / "1" / "model.xml").write_text("hello")),
        "ir_of_text/1/model.xml",
        "is no XML, as a model of OpenVINO is",
        "fetch it again",
    ),
    Mistake(
        "ir_without_file",
        all_of(ir(), move("1/model.xml", "1/net.xml")),
        "ir_without_file/1",
        "has no model.xml or model.onnx; it has model.bin, net.xml",
        "rename net.xml to model.xml",
    ),
    Mistake(
        "ir_pointer",
        all_of(
            ir(),
            lambda folder: (folder / "1" / "model.bin").write_bytes(
                b"version https://git-lfs.github.com/spec/v1\n"
            ),
        ),
        "ir_pointer/1/model.bin",
        "is a pointer of Git LFS",
        "git lfs pull",
        refused=False,  # it has as many bytes as the weights
    ),
    Mistake(
        "ir_tensor",
        all_of(ir(), config('name: "INPUT"', 'name: "input"')),
        "ir_tensor/config.pbtxt",
        "the configuration has input 'input', but the file's inputs are 'INPUT'",
        "write it as the file has it",
    ),
    Mistake(
        "ir_type",
        all_of(ir(), config("TYPE_FP32 dims: [ 3 ] }", "TYPE_FP16 dims: [ 3 ] }")),
        "ir_type/config.pbtxt",
        "input 'INPUT' is TYPE_FP16 in the configuration, but TYPE_FP32 in the file",
        "write it as the file has it",
    ),
    Mistake(
        "platform_openvino",
        all_of(ir(), config("backend:", "platform:")),
        "platform_openvino/config.pbtxt:2",
        '`platform` is "openvino", which is the name of a backend',
        'write backend: "openvino"',
    ),
]


# What only looks like a mistake: Triton takes it, and nothing is said of it, but for `WARNED`.
TAKEN = {
    "version_0": move("1", "0"),
    "octal_count": config("dynamic", "instance_group { count: 01 }\ndynamic"),
    "octal_dims": config("dims: [ 3 ]", "dims: [ 03 ]"),
    "octal_sizes": config("[ 4, 8 ]", "[ 04, 010 ]"),
    "warmup_passed_over": warmed_up_with("dims: [ 4 ]", "x", batch_size=0),
    "warmup_of_false": warmed_up_with("dims: [ 3 ] zero_data: false"),
    "output_twice": config(
        "dynamic", 'output { name: "OUTPUT" data_type: TYPE_FP32 dims: -1 }\ndynamic'
    ),
    "reshaped_around": config("dims: [ 3 ]", "dims: [ 3 ] reshape { shape: [ 3 ] }"),
    "priorities_taken": config("8 ] }", "8 ] priority_levels: 2 default_priority_level: 2 }"),
    "output_of_an_input": all_of(
        ensemble(),
        config("output [", 'output [ { name: "INPUT" data_type: TYPE_FP32 dims: 3 } ] output ['),
    ),
    "ensemble_over_unbatched": all_of(
        beside("unbatched_model"), ensemble(STEP.replace("right", "unbatched_model"))
    ),
    "ensemble_unbatched": all_of(ensemble(), config("max_batch_size: 8", "max_batch_size: 0")),
    "engine_pinned": all_of(parameter("engine", "onnxruntime"), parameter("NUM_STREAMS", "many")),
    "engine_chosen": all_of(accelerated_by("openvino"), parameter("precision", "auto")),
    "ir": all_of(ir(), parameter("NUM_STREAMS", "AUTO"), parameter("HINT_BF16", "NO")),
    "ir_found": all_of(ir(), config('backend: "openvino"', "")),
    "onnx_by_openvino": all_of(
        config('backend: "onnxruntime"', 'backend: "openvino"'),
        config("max_batch_size", 'default_model_filename: "model.onnx"\nmax_batch_size'),
        config("dims: [ 3 ]", "dims: [ -1 ]"),
    ),
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
        "passive/config.pbtxt:6",
        "`instance_group.passive` leaves no instance for requests, and crashes Triton",
        "leave it out",
    ),
    Mistake(
        "label_folder",
        config("labels.txt", r"\061"),
        "label_folder/config.pbtxt:5",
        '`label_filename` is "1", which is no file, and crashes Triton',
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
        "is a folder, and crashes Triton",
        "put the file there",
    ),
]
