"""Writes the files of a model's folder, and its test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backends.completion import complete
from backends.model_config import DYNAMIC_BATCHING, ModelConfigError
from clients.families.base.dispatch_toml import FILE
from clients.families.base.family import LABELS
from clients.model_files.config_text import read
from clients.model_files.model_folders import CONFIG
from clients.tensors.signature import DTYPES
from clients.triton.configuration import config_dictionary
from clients.triton.server import TensorSpec
from container.trouble import Trouble
from tool.scaffold.options import KINDS, TABLE, TEXT, class_name, file_name
from tool.scaffold.plan import FamilyPlan, quote
from tool.scaffold.source import ModelSource

TEMPLATE = Path(__file__).parent / "template"
MOST = {TEXT: 16, TABLE: 1024}  # of which runs are short; of others 8
WIDTH = 100
LARGE_PICTURES = ("detection", "segmentation", "picture-to-picture")
NO_BATCHES = (
    "# No dynamic_batching: on a CPU a batch of pictures takes longer than its pictures one by",
    "# one, and every caller in it waits for all. On a GPU add `dynamic_batching { }`.",
)


def write_files(place: Path, name: str, source: ModelSource, plan: FamilyPlan) -> None:
    """Write all files but the model and its tokenizer below `place`."""
    folder = place / name
    (folder / CONFIG).write_text(config(name, source, plan), encoding="utf-8")
    (folder / FILE).write_text(dispatch_toml(name, plan), encoding="utf-8")
    (folder / LABELS).unlink(missing_ok=True)  # another plan's
    if plan.labels:
        text = "".join(f"{one}\n" for one in plan.labels)
        (folder / LABELS).write_text(text, encoding="utf-8")
    test = place / "code" / "tests" / f"test_{file_name(name)}.py"
    test.parent.mkdir(parents=True, exist_ok=True)
    test.write_text(test_of(name, source, plan), encoding="utf-8")


def dispatch_toml(name: str, plan: FamilyPlan) -> str:
    return "\n".join([f"# {name}", f'family = "{plan.family}"', *plan.lines, ""])


def config(name: str, source: ModelSource, plan: FamilyPlan) -> str:
    """Return the content of config.pbtxt, with the tensors of the file.

    Requests share runs where each row was answered as alone, as the backend itself finds out.
    """
    most = MOST.get(KINDS[plan.family], 8) if source.batched else 0
    fields, why = completion(name, source, most)
    if most and DYNAMIC_BATCHING not in fields:
        most, (fields, _) = 0, completion(name, source, 0)
    lines = [beginning(name, most)]
    lines += [
        tensors(key, fields[key], plan.labelled if plan.labels else "")
        for key in ("input", "output")
    ]
    lines.append("instance_group [ { count: 1 kind: KIND_AUTO } ]")
    if why:
        lines.append(f"# Requests run one by one: {why}.")
    elif most and plan.family in LARGE_PICTURES:
        lines += NO_BATCHES
    elif most:
        lines.append("dynamic_batching { }")
    return "".join(f"{line}\n" for line in lines)


def beginning(name: str, most: int) -> str:
    return f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {most}'


def completion(name: str, source: ModelSource, most: int) -> tuple[Mapping[str, Any], str]:
    """Return what the file adds to a configuration, and why requests do not share runs."""
    text = beginning(name, most)
    try:
        found = complete(config_dictionary(text), read(text), source.opened)
    except ModelConfigError as error:
        raise Trouble(f"{source.file}: {error}") from error
    return found.fields, found.warning[0].partition(": ")[2] if found.warning else ""


def tensors(key: str, listed: list[Mapping[str, Any]], labelled: str) -> str:
    """Return the inputs or outputs for config.pbtxt."""
    found = []
    for one in listed:
        fields = [f"name: {quote(one['name'])}", f"data_type: {one['data_type']}"]
        fields.append(f"dims: [ {', '.join(map(str, one['dims']))} ]")
        if "reshape" in one:
            fields.append("reshape: { shape: [ ] }")
        if key == "output" and one["name"] == labelled:
            fields.append(f"label_filename: {quote(LABELS)}")
        found.append(f"{{ {' '.join(fields)} }}")
    line = f"{key} [ {', '.join(found)} ]"
    return line if len(line) <= WIDTH else "\n".join([f"{key} [", "  " + ",\n  ".join(found), "]"])


def test_of(name: str, source: ModelSource, plan: FamilyPlan) -> str:
    """Return the test of the model, which an author runs with Python or pytest."""
    text = (TEMPLATE / f"test_{KINDS[plan.family]}.py.txt").read_text(encoding="utf-8")
    return text.format(
        name=name,
        kind=class_name(name),
        inputs="\n".join(map(make_up_input, source.inputs)),
        outputs=[one.name for one in source.outputs],
    )


def make_up_input(spec: TensorSpec) -> str:
    """Return a line of Python with an input of zeros."""
    shape = tuple(max(1, size) for size in spec.shape) or (1,)  # as Triton has it of a scalar
    if spec.datatype == "BYTES":
        return f'    {quote(spec.name)}: np.full({shape}, "", object),'
    return f'    {quote(spec.name)}: np.zeros({shape}, "{np.dtype(DTYPES[spec.datatype])}"),'
