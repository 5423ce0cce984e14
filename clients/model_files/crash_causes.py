"""Finds what crashes Triton in a model's configuration and files.

Triton 2.51 crashes with SIGABRT if it reads a folder as a file, and with SIGSEGV for the other
causes (every third time for a warm-up's batch). A crash takes all other models along, and repeats
after each restart. So such a model is refused beforehand. Mistakes that Triton itself refuses are
left to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.model_files.config_text import (
    TRUE,
    Field,
    Message,
    NotProtobufText,
    line_of,
    parse_integer,
    read,
)
from clients.model_files.files import exists, is_file, strip_mark

CONFIG = "config.pbtxt"

# The most numbers of a warm-up's tensor: a message of gRPC has at most 2 GiB.
MOST_NUMBERS = 2**31

# Triton's default for models of these backends that can batch. Other backends read it from the
# model.
DEFAULT_MAX_BATCH_SIZE = 4
DEFAULTED = ("onnxruntime", "pytorch", "onnxruntime_onnx", "pytorch_libtorch")


Fault = tuple[str, Field, str, str]  # the key, its place, what is wrong, and how to mend it


@dataclass(frozen=True)
class CrashCause:
    """Something that crashes Triton."""

    key: str  # the key in the configuration; empty for the file itself
    line: int  # its line, counted from 1; 0 for the whole file
    what: str  # what is wrong, and what Triton does
    fix: str  # how to mend it

    def __str__(self) -> str:
        key = f" `{self.key}`" if self.key else ""
        return f"{CONFIG}:{key} {self.what}: {self.fix}"


def crash_causes(folder: Path) -> list[CrashCause]:
    """Return what would crash Triton when it loads or runs the model in a folder."""
    try:
        text = strip_mark((folder / CONFIG).read_bytes()).decode(errors="replace")
        message = read(text)
    except IsADirectoryError:
        return [CrashCause("", 0, "is a folder, and crashes Triton", "put the file there")]
    except (OSError, ValueError):  # there is none, or Triton refuses it
        return []
    return [
        CrashCause(key, line_of(text, field), f"{what}, and crashes Triton", fix)
        for key, field, what, fix in find_causes(message, folder)
    ]


def find_causes(message: Message, folder: Path) -> Iterator[Fault]:
    """Yield the causes in a configuration that can be read."""
    groups = message.messages("instance_group")
    passive = [field for group in groups for field in group.all("passive")]
    if groups and all(group.text("passive").lower() in TRUE for group in groups):
        what = "leaves no instance for requests"
        yield "instance_group.passive", passive[0], what, "leave it out"
    for output in message.messages("output"):
        for field in output.all("label_filename"):
            if field.value and is_no_file(folder, field.value):
                what = f'is "{field.value}", which is no file'
                yield "label_filename", field, what, "name a file with a label in each line"
    most = largest_batch(message, folder)
    for sample in message.messages("model_warmup"):
        for field in sample.all("batch_size"):
            if sample.readable_number("batch_size") > max(1, most):
                what = f"is {field.value}, but max_batch_size is {most}"
                yield "model_warmup.batch_size", field, what, f"write at most {max(1, most)}"
        for entry in sample.messages("inputs"):
            for tensor in entry.messages("value"):
                yield from of_a_warmup(sample, tensor, folder / "warmup")


def of_a_warmup(sample: Message, tensor: Message, folder: Path) -> Iterator[Fault]:
    """Yield the causes in one tensor of a warm-up; `folder` has its files."""
    for field in tensor.all("input_data_file"):
        if is_no_file(folder, field.value):
            what = f'is "{field.value}", which is no file in warmup/'
            yield "model_warmup.inputs.input_data_file", field, what, "name one"
    dims = tensor.all("dims")
    if dims and numbers(sample, tensor) > MOST_NUMBERS:
        what = f"and batch_size make more than {MOST_NUMBERS:,} numbers"
        yield "model_warmup.inputs.dims", dims[0], what, "write smaller ones"


def is_no_file(folder: Path, name: object) -> bool:
    """Whether a path is no file; Triton reads "/a" as a path in the folder too."""
    path = f"{folder}/{name}"
    return exists(path) and not is_file(path)


def largest_batch(message: Message, folder: Path) -> float:
    """Return the largest batch that the configuration allows; infinity if unknown."""
    backend = message.text("backend") or message.text("platform")
    if backend not in DEFAULTED and (backend or not any(folder.glob("*/model.onnx"))):
        return math.inf  # its code, or its file, may set another
    stated = message.all("max_batch_size") or (message.all("input") and message.all("output"))
    try:
        return message.number("max_batch_size") if stated else DEFAULT_MAX_BATCH_SIZE
    except NotProtobufText:
        return math.inf  # Triton refuses it


def numbers(sample: Message, tensor: Message) -> int:
    """Return the count of numbers in a tensor of a warm-up."""
    try:
        sizes = [sample.readable_number("batch_size"), *map(parse_integer, tensor.texts("dims"))]
    except NotProtobufText:
        return 0
    return math.prod(max(1, size) for size in sizes)
