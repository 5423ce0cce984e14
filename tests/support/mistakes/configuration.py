"""Mistakes in the folders, files and fields of one model."""

from __future__ import annotations

from tests.support.mistakes.mistake import (
    Mistake,
    config,
    model,
    move,
)

CONFIGURATION = [
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
        "in_the_version",
        move("config.pbtxt", "1/config.pbtxt"),
        "in_the_version/1/config.pbtxt",
        "Triton does not read it",
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
        "parameter",
        config(
            "dynamic",
            'parameters { key: "intra_op_thread_count" value { string_value: "abc" } }\ndynamic',
        ),
        "parameter/config.pbtxt:6",
        "'intra_op_thread_count' is 'abc', but expected is a whole number",
        "",
    ),
]
