"""Mistakes that people make in a model folder, each made in a copy of one that is right."""

from __future__ import annotations

from tests.support.mistakes.mistake import (
    Mistake,
    accelerated_by,
    config,
    model,
    move,
    parameter,
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
