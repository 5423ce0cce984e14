"""What Triton refuses in a configuration that it can read.

The rules are those of `model_config_utils.cc` in triton-inference-server/core.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from clients.config_text import Field, Message, NotReadable, whole
from clients.deadly import Fault, warmup_tensors

TENSOR = {"name": '"x"', "data_type": "TYPE_FP32", "dims": "[ 3 ]"}  # what Triton wants of each
PICTURE_DIMS = 3


def refused(message: Message, folder: Path) -> Iterator[Fault]:
    """Yield what Triton refuses in a model's configuration."""
    yield from undescribed(message)
    yield from of_tensors(message)
    yield from of_instances(message)
    yield from of_an_ensemble(message)
    if message.all("input"):  # else they are found in the model's file
        yield from of_warmups(message, [one.text("name") for one in message.messages("input")])
    yield from without_a_file(message, folder / "warmup")


def undescribed(message: Message) -> Iterator[Fault]:
    """Yield what tensors lack."""
    for kind, field, tensor in tensors(message):
        for key, such_as in TENSOR.items():
            if not tensor.all(key):
                fix = (
                    f"write it, such as {key}: {such_as}; or leave input and output out altogether "
                    "where the model's file knows them"
                )
                yield f"{kind}.{key}", field, f"is missing in an {kind}", fix


def of_tensors(message: Message) -> Iterator[Fault]:
    for kind, _, tensor in tensors(message):
        dims = tensor.texts("dims")
        for field in tensor.all("format"):
            if field.value in {"FORMAT_NCHW", "FORMAT_NHWC"} and len(dims) != PICTURE_DIMS:
                what = f"is {field.value}, but there are {len(dims)} dims, not {PICTURE_DIMS}"
                yield f"{kind}.format", field, what, "leave it out"
        for field in tensor.all("reshape"):
            if isinstance(field.value, Message):
                shape = field.value.texts("shape")
                if elements(dims) != elements(shape):
                    what = f"to {shown(shape)} has not as many elements as dims {shown(dims)}"
                    yield f"{kind}.reshape", field, what, "write a shape of as many"


def of_instances(message: Message) -> Iterator[Fault]:
    for group in message.messages("instance_group"):
        if group.text("kind") == "KIND_CPU" and (gpus := group.all("gpus")):
            yield "instance_group.gpus", gpus[0], "stands beside KIND_CPU", "leave it out"


def of_an_ensemble(message: Message) -> Iterator[Fault]:
    is_one = [one for one in message.all("platform") if one.value == "ensemble"]
    scheduled = message.all("ensemble_scheduling")
    if is_one and not steps(message):
        yield "ensemble_scheduling.step", is_one[0], "is missing", "write one for each model"
    if scheduled and not is_one:
        yield "platform", scheduled[0], "is missing", 'write platform: "ensemble"'
    for key in ("backend", "instance_group"):
        if scheduled and (fields := message.all(key)):
            yield key, fields[0], "is of no use to an ensemble, whose steps have it", "leave it out"


def of_warmups(message: Message, inputs: Collection[str]) -> Iterator[Fault]:
    """Yield the inputs of warm-ups that the model has not."""
    for sample in message.messages("model_warmup"):
        for entry in sample.messages("inputs"):
            for field in entry.all("key"):
                if field.value not in inputs:
                    what = f'is "{field.value}", which the model has not'
                    yield "model_warmup.inputs.key", field, what, f"it has {', '.join(inputs)}"


def without_a_file(message: Message, folder: Path) -> Iterator[Fault]:
    """Yield the files of warm-ups that are not there."""
    for _, tensor in warmup_tensors(message):
        for field in tensor.all("input_data_file"):
            # Path's own method raises where a name is too long.
            if not os.path.exists(f"{folder}/{field.value}"):  # noqa: PTH110
                what = f'is "{field.value}", which is not in warmup/'
                yield "model_warmup.inputs.input_data_file", field, what, "put it there"


def steps(message: Message) -> list[Message]:
    """Return the steps of an ensemble."""
    return [
        step for one in message.messages("ensemble_scheduling") for step in one.messages("step")
    ]


def tensors(message: Message) -> Iterator[tuple[str, Field, Message]]:
    """Yield each input and output: which of both it is, where it stands, and the fields in it."""
    for kind in ("input", "output"):
        for field in message.all(kind):
            if isinstance(field.value, Message):
                yield kind, field, field.value


def elements(dims: Collection[str]) -> int:
    """Return how many elements there are in one item; -1 where that varies."""
    try:
        sizes = [whole(size) for size in dims]
    except NotReadable:  # Triton says so
        return -1
    return -1 if -1 in sizes else math.prod(sizes)


def shown(dims: Collection[str]) -> str:
    return f"[{', '.join(dims)}]"
