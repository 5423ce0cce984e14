"""What Triton refuses in a configuration that it can read.

The rules are those of `model_config_utils.cc` and, for what is known of the models that an ensemble
asks, of `model_repository_manager.cc` in triton-inference-server/core.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clients.model_files.config_text import Field, Message, NotProtobufText, whole
from clients.model_files.crash_causes import DEFAULTED, TRUE, Fault, largest_batch, warmup_tensors

TENSOR = {"name": '"x"', "data_type": "TYPE_FP32", "dims": "[ 3 ]"}  # what Triton wants of each
KINDS = ("input", "output")
NO_TYPE = "TYPE_INVALID"
ANY_SIZE = -1
PICTURE_DIMS = 3
WARMUP_DATA = ("zero_data", "random_data", "input_data_file")

# Inputs of a sequence that Triton fills with one of two values, and the fields for these.
SWITCHES = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_END")
SWITCHED = ("int32_false_true", "fp32_false_true", "bool_false_true")


def refused(message: Message, folder: Path, inputs: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Yield what Triton refuses in a model's configuration.

    `inputs` are those that the configuration lists, as Triton's dictionary has them.
    """
    yield from undescribed(message)
    yield from of_tensors(message, folder)
    yield from of_instances(message)
    yield from of_priorities(message)
    yield from of_sequences(message)
    yield from of_an_ensemble(message)
    if inputs and not steps(message):  # else they are found in the model's file
        yield from of_warmups(message, inputs)
    yield from without_a_file(message, folder / "warmup")


def undescribed(message: Message) -> Iterator[Fault]:
    """Yield tensors without a name, a type or dims."""
    for kind, field, tensor in tensors(message):
        for key, such_as in TENSOR.items():
            if not tensor.all(key) or tensor.text(key) == NO_TYPE:
                fix = (
                    f"write it, such as {key}: {such_as}; or leave input and output out altogether "
                    "where the model's file knows them"
                )
                yield f"{kind}.{key}", field, f"is missing in an {kind}", fix


def of_tensors(message: Message, folder: Path) -> Iterator[Fault]:
    for kind, _, tensor in tensors(message):
        dims = tensor.texts("dims")
        for field, size in zip(tensor.all("dims"), sizes(dims), strict=False):
            if size < 1 and size != ANY_SIZE:
                fix = "write 1 or more, or -1 where the size varies"
                yield f"{kind}.dims", field, f"is {size}", fix
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
                elif not shape and largest_batch(message, folder) == 0:
                    what = "to no dimensions at all is for models that batch"
                    yield f"{kind}.reshape", field, what, "leave it out"


def of_instances(message: Message) -> Iterator[Fault]:
    for group in message.messages("instance_group"):
        if group.text("kind") == "KIND_CPU" and (gpus := group.all("gpus")):
            yield "instance_group.gpus", gpus[0], "is set beside KIND_CPU", "leave it out"


def of_priorities(message: Message) -> Iterator[Fault]:
    for batching in message.messages("dynamic_batching"):
        levels = batching.readable_number("priority_levels")
        default = batching.readable_number("default_priority_level")
        if levels and not 1 <= default <= levels:
            key = "dynamic_batching.default_priority_level"
            where = batching.all("default_priority_level") or batching.all("priority_levels")
            what = f"is {default}, but priority_levels is {levels}"
            yield key, where[0], what, f"write a number from 1 to {levels}"


def of_sequences(message: Message) -> Iterator[Fault]:
    key = "sequence_batching.control_input.control"
    for batching in message.messages("sequence_batching"):
        for tensor in batching.messages("control_input"):
            for field in tensor.all("control"):
                control = field.value
                if isinstance(control, Message) and control.text("kind", SWITCHES[0]) in SWITCHES:
                    values = [control.all(one) for one in SWITCHED if control.all(one)]
                    if [len(one) for one in values] != [2]:
                        what = f"is without its two values in one of {', '.join(SWITCHED)}"
                        yield key, field, what, "write int32_false_true: [ 0, 1 ]"


def of_an_ensemble(message: Message) -> Iterator[Fault]:
    is_one = [one for one in message.all("platform") if one.value == "ensemble"]
    scheduled = message.all("ensemble_scheduling")
    if is_one and not steps(message):
        yield "ensemble_scheduling.step", is_one[0], "is missing", "write one for each model"
    if scheduled and not is_one:
        yield "platform", scheduled[0], "is missing", 'write platform: "ensemble"'
    for key in ("backend", "instance_group", "model_warmup"):
        if scheduled and (fields := message.all(key)):
            yield key, fields[0], "is of no use to an ensemble, whose steps have it", "leave it out"
    for scheduling in message.messages("ensemble_scheduling"):
        yield from of_steps(scheduling)
        yield from of_the_way(message, scheduling)


def of_steps(scheduling: Message) -> Iterator[Fault]:
    """Yield steps without a model, a map or a version."""
    for field in scheduling.all("step"):
        step = field.value
        if isinstance(step, Message):
            for key in ("model_name", "input_map", "output_map"):
                if not step.all(key):
                    yield f"ensemble_scheduling.step.{key}", field, "is missing", "write it"
            if step.readable_number("model_version") == 0:
                fix = "write model_version: -1 for the latest"
                yield "ensemble_scheduling.step.model_version", field, "is missing or 0", fix


def of_the_way(message: Message, scheduling: Message) -> Iterator[Fault]:
    """Yield an ensemble's tensors that have no source, two sources, or no use."""
    key = "ensemble_scheduling.step"
    taken = [one for step in scheduling.messages("step") for one in mapped(step, "input")]
    made = [one for step in scheduling.messages("step") for one in mapped(step, "output")]
    read, written = {name for _, name, _ in taken}, Counter(name for _, name, _ in made)
    inputs, outputs = ({one.text("name") for one in message.messages(kind)} for kind in KINDS)
    for kind, field, tensor in tensors(message):
        name = tensor.text("name")
        if kind == "input" and name not in read:
            yield kind, field, f'"{name}" is taken by no step', f'name "{name}" in an input_map'
        if kind == "output" and name not in {*written, *inputs}:
            yield kind, field, f'"{name}" is made by no step', f'name "{name}" in an output_map'
    for _, name, field in taken:
        if name not in {*written, *inputs}:
            fix = "name an input of the ensemble, or what another step makes"
            yield f"{key}.input_map", field, f'takes "{name}", which no step makes', fix
    for _, name, field in made:
        if written[name] > 1:
            what = f'makes "{name}", which another step makes, too'
            yield f"{key}.output_map", field, what, "give each a name of its own"
        if name not in {*read, *outputs}:
            what = f'makes "{name}", which no step takes, and which is no output'
            yield f"{key}.output_map", field, what, "leave it out"


def of_asked_models(message: Message, models: Mapping[str, Message]) -> Iterator[Fault]:
    """Yield where an ensemble does not fit its models' configurations."""
    types = {one.text("name"): one.text("data_type") for _, _, one in tensors(message)}
    for step in steps(message):
        for place in step.all("model_name"):
            model = models.get(str(place.value), Message())
            ours = model.text("backend") in DEFAULTED  # the code of others may say something else
            if ours:
                yield from of_batches(message, model, place)
            for kind in KINDS:
                yield from of_types(step, kind, model, types)
                if ours:
                    yield from of_names(step, kind, model, place)


def of_batches(message: Message, model: Message, place: Field) -> Iterator[Fault]:
    most, limit = (one.readable_number("max_batch_size") for one in (message, model))
    if 0 < limit < most:  # one that does not batch may be asked by an ensemble that does
        what = f"is {most}, but that of {place.value} is {limit}"
        yield "max_batch_size", place, what, f"write at most {limit}"


def of_types(step: Message, kind: str, model: Message, types: dict[str, str]) -> Iterator[Fault]:
    """Yield tensors of another type than seen before; record the others."""
    known = {one.text("name"): one.text("data_type") for one in model.messages(kind)}
    for theirs, tensor, field in mapped(step, kind):
        if theirs in known:
            seen = types.setdefault(tensor, known[theirs])
            if differ(seen, known[theirs]):
                what = f'has "{tensor}" as {known[theirs]}, and it is {seen} elsewhere'
                key = f"ensemble_scheduling.step.{kind}_map"
                yield key, field, what, "let both be of one type"


def of_names(step: Message, kind: str, model: Message, place: Field) -> Iterator[Fault]:
    """Yield tensors that a model does not have, and inputs that are missing."""
    key = f"ensemble_scheduling.step.{kind}_map"
    listed = {one.text("name"): one for one in model.messages(kind)}
    given = {theirs: field for theirs, _, field in mapped(step, kind)}
    for theirs, field in given.items():
        if listed and theirs not in listed:
            what = f'names the {kind} "{theirs}", which {place.value} has not'
            yield key, field, what, f"it has {', '.join(listed)}"
    for theirs, tensor in listed.items():
        optional = kind == "output" or tensor.text("optional").lower() in TRUE
        if theirs not in given and not optional:
            yield key, place, f'is without "{theirs}", an input of {place.value}', "write it"


def of_warmups(message: Message, inputs: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """Yield where warm-ups do not fit the model's inputs."""
    known = {str(one.get("name")): one for one in inputs}
    for field in message.all("model_warmup"):
        sample = field.value
        if not isinstance(sample, Message) or not sample.readable_number("batch_size"):
            continue  # Triton passes over it
        given = {one.text("key"): one for one in sample.messages("inputs")}
        for name, entry in given.items():
            for place in entry.all("key"):
                if name not in known:
                    what = f'is "{name}", which the model has not'
                    yield "model_warmup.inputs.key", place, what, f"it has {', '.join(known)}"
            for place in entry.all("value"):
                if name in known and isinstance(place.value, Message):
                    yield from of_a_warmup(place, place.value, known[name])
        for name, one in known.items():
            if name not in given and not one.get("optional"):
                yield "model_warmup.inputs", field, f'has none for the input "{name}"', "write it"


def of_a_warmup(place: Field, sent: Message, tensor: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield where one tensor of a warm-up does not fit the input that it is for."""
    type_, wanted = sent.text("data_type", NO_TYPE), str(tensor.get("data_type"))
    if differ(type_, wanted):
        what = f"is {'missing' if type_ == NO_TYPE else type_}, and the input is {wanted}"
        yield "model_warmup.inputs.data_type", place, what, f"write {wanted}"
    dims, expected = sizes(sent.texts("dims")), [int(size) for size in tensor.get("dims", [])]
    if ANY_SIZE in dims:
        yield "model_warmup.inputs.dims", place, f"is {ANY_SIZE}", "write how many are to be sent"
    elif not same_shape(expected, dims):
        what = f"is {dims}, and the input has {expected}"
        yield "model_warmup.inputs.dims", place, what, "write them as the input has them"
    if not any(sent.all(key) for key in WARMUP_DATA):
        yield "model_warmup.inputs", place, "has no data", "write zero_data: true"


def without_a_file(message: Message, folder: Path) -> Iterator[Fault]:
    """Yield the files of warm-ups that are not there."""
    for _, tensor in warmup_tensors(message):
        for field in tensor.all("input_data_file"):
            # Path's own method raises where a name is too long.
            if not os.path.exists(f"{folder}/{field.value}"):  # noqa: PTH110
                what = f'is "{field.value}", which is not in warmup/'
                yield "model_warmup.inputs.input_data_file", field, what, "put it there"


def steps(message: Message) -> list[Message]:
    return [
        step for one in message.messages("ensemble_scheduling") for step in one.messages("step")
    ]


def mapped(step: Message, kind: str) -> Iterator[tuple[str, str, Field]]:
    """Yield a model's tensors, the ensemble's tensor of each, and its field."""
    entries = {
        field.value.text("key"): (field.value.text("value"), field)
        for field in step.all(f"{kind}_map")
        if isinstance(field.value, Message)
    }
    for key, (value, field) in entries.items():  # of two for one the last counts
        yield key, value, field


def tensors(message: Message) -> Iterator[tuple[str, Field, Message]]:
    """Yield each input and output with its kind, its field and its values."""
    for kind in KINDS:
        for field in message.all(kind):
            if isinstance(field.value, Message):
                yield kind, field, field.value


def differ(one: str, other: str) -> bool:
    """Whether two types differ; types given as numbers are not compared."""
    return one != other and one.startswith("TYPE_") and other.startswith("TYPE_")


def sizes(dims: Sequence[str]) -> list[int]:
    """Return dims as numbers; empty where one cannot be read."""
    try:
        return [whole(size) for size in dims]
    except NotProtobufText:
        return []


def elements(dims: Sequence[str]) -> list[int]:
    """Return the elements between the dynamic dimensions of one item."""
    counts = [1]
    for size in sizes(dims):
        if size == ANY_SIZE:
            counts.append(1)
        else:
            counts[-1] *= size
    return counts


def same_shape(expected: Sequence[int], dims: Sequence[int]) -> bool:
    return len(expected) == len(dims) and all(
        one in {ANY_SIZE, other} for one, other in zip(expected, dims, strict=True)
    )


def shown(dims: Sequence[str]) -> str:
    return f"[{', '.join(dims)}]"
