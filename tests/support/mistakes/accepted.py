"""What only looks like a mistake, and what Triton ends over."""

from __future__ import annotations

from pathlib import Path

from tests.support.mistakes.mistake import (
    Mistake,
    accelerated_by,
    all_of,
    config,
    move,
    parameter,
    warmed_up_with,
)

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
