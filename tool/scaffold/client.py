"""Writes a class for a model's file: what reads a payload, and asks for the model's tensors."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from clients.errors import InferenceError
from clients.repository.model_folders import CONFIG
from clients.testing import OnnxModels, answer, clients_in
from clients.triton.server import TensorSpec
from tool.placing import beside, put
from tool.scaffold.families import plans
from tool.scaffold.folder import TEMPLATE, config, kind_of, write_labels
from tool.scaffold.new_model import TOKENIZER, source_of, tokenizer_for
from tool.scaffold.options import KINDS, PICTURE, TENSORS, TEXT, refuse_to_overwrite
from tool.scaffold.pictures import CLASSIFIER_SIDE, DETECTOR_SIDE, pixels
from tool.scaffold.plan import Plan, quoted
from tool.scaffold.source import Source
from tool.trouble import Trouble

BOXES = re.compile(r'output_layout = "(yolov5|yolov8)"')
MOST = 1000  # of an axis that an answer lists


def write(options: argparse.Namespace, names: Mapping[str, str], files: tuple[Path, Path]) -> Plan:
    """Write a class, its test and its model's folder; return for which family they are.

    Args:
        options: those of `add_source`, and the name.
        names: of the model, the class and the file, as the templates have them.
        files: the class's and the test's, below the folder that the options name.

    Raises:
        Trouble: something is there already, or the model cannot be asked.

    """
    root: Path = options.into
    refuse_to_overwrite(root, Path(options.name), *files)
    source = source_of(options)
    plan = plans(source, options.family)[0]
    kind = KINDS[plan.family]
    with beside(root) as place:
        folder = place / options.name
        source.copy_to(folder / "1")
        (folder / CONFIG).write_text(config(options.name, source, plan), encoding="utf-8")
        if plan.labels:
            write_labels(folder, plan)
        if plan.tokens:
            tokenizer_for(options, source, folder / TOKENIZER)
        made = WRITERS[kind](source, plan)
        for path, template in zip(files, (f"client_{kind}", "test_client"), strict=True):
            text = (TEMPLATE / f"{template}.py.txt").read_text(encoding="utf-8")
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text.format(**names, **made), encoding="utf-8")
        try:
            (client,) = clients_in(place / files[0])
            answer(client, None, OnnxModels(place))
        except InferenceError as error:
            raise Trouble(
                f"{source.file} is asked for {plan.family}, because {plan.why}; but {error.message}"
            ) from error
        put(place, root, (Path(options.name), *files))
    sys.stdout.write(f"family: {plan.family}, because {plan.why}\n")
    return plan


def of_picture(source: Source, plan: Plan) -> dict[str, str]:
    """Return what fills the template for a model that takes pictures, or their files."""
    if plan.family == "picture-file":
        (spec,) = source.inputs
        shape = [1] * (len(spec.shape) - 1)
        made = f"np.array([file.data], object).reshape({[*shape, 1]})"
        if spec.datatype == "UINT8":
            made = f"np.frombuffer(file.data, np.uint8).reshape({[*shape, -1]})"
        read = f'file = self.picture_file(payload, "img")\n        tensor = {made}'
        return filled(read, spec.name, listed(source))
    taken = pixels(source)
    side = DETECTOR_SIDE if plan.family == "detection" else CLASSIFIER_SIDE
    size = tuple(side if one == -1 else one for one in (taken.height, taken.width))
    found = BOXES.search("\n".join(plan.lines))
    if found and source.batched and len(source.outputs) == 1:
        return of_boxes(taken.spec.name, size, found[1], source.outputs[0].name)
    kind = kind_of(taken.spec.datatype)
    read = f'pixels = resized(self.picture(payload, "img"), {size}, {size})'
    if taken.channels == 1:
        read += "\n        pixels = pixels.mean(2, keepdims=True)"
    read += f'\n        pixels = pixels.astype("{kind}")' + ("" if kind == "uint8" else " / 255")
    turned = ".transpose(2, 0, 1)" if taken.layout == "NCHW" else ""
    batch = "[None]" if len(taken.spec.shape) == 4 else ""
    read += f'\n        tensor = np.ascontiguousarray(pixels{turned}{batch}, "{kind}")'
    after = "from clients.images.resizing import resized\n"
    return filled(read, taken.spec.name, listed(source), after=after)


def filled(
    read: str, name: str, result: str, *, before: str = "", after: str = ""
) -> dict[str, str]:
    """Return what fills the template for pictures; `before` and `after` are imports."""
    arrays = "import numpy as np\n\n" if "np." in read else ""
    made = {"read": read, "input": quoted(name), "result": result, "arrays": arrays}
    return {**made, "before": before, "after": after}


def of_boxes(name: str, size: tuple[int, ...], layout: str, output: str) -> dict[str, str]:
    """Return what fills the template for a YOLO, whose boxes are returned."""
    result = f"""boxes = best_objects(
            *{layout}_candidates(outputs[{quoted(output)}][0], 0.5), confidence=0.5, iou=0.45
        )
        return [
            {{"class": int(kind), "score": round(float(score), 4), "corners": corners}}
            for kind, score, corners in zip(
                *boxes[:2], box.back(boxes[2]).round(2).tolist(), strict=True
            )
        ]"""
    names = f"Letterbox, best_objects, {layout}_candidates"
    read = f'box = Letterbox.around(self.picture(payload, "img"), {size})\n        '
    before = f"from clients.families.detection import {names}\n"
    return filled(f"{read}tensor = box.pixels[None]", name, result, before=before)


def listed(source: Source, *, single: bool = False) -> str:
    """Return the code for a result with the outputs, or the best of each axis that is long."""
    item = "" if single else "[0]"
    lines = []
    for spec in source.outputs:
        long = bool(spec.shape) and spec.shape[-1] > MOST
        best = ".argmax(-1)" if long else ""
        text = spec.datatype == "BYTES"
        made = f"outputs[{quoted(spec.name)}]{item}{best}"
        made = f"np.char.decode({made}.astype(bytes))" if text else made
        lines.append(f"            {quoted(spec.name)}: {made}.tolist(),")
    return "\n".join(["return {", *lines, "        }"])


def of_text(source: Source, _: Plan) -> dict[str, str]:
    """Return what fills the template for a model that takes tokens."""
    parts = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    length = max(0, source.inputs[0].shape[-1])
    single = len(source.inputs[0].shape) == 1
    lines = []
    for spec in source.inputs:
        row, kind = f"tokens.{parts[spec.name]}", kind_of(spec.datatype)
        made = f'np.array([{row}], "{kind}")'
        if length:
            made = f'padded([{row}], 0, {length}).astype("{kind}")'
        lines.append(f"                {quoted(spec.name)}: {made}{'[0]' if single else ''},")
    return {
        "arrays": "" if length else "import numpy as np\n\n",
        "padded": "from clients.text.batch import padded\n" if length else "",
        "inputs": "\n".join(lines),
        "longest": str(length or "self.tokenizer.longest or 512"),
        "result": listed(source, single=single),
    }


def of_tensors(source: Source, _: Plan) -> dict[str, str]:
    """Return what fills the template for any other model: a field for each input."""
    example, lines = [], []
    for spec in source.inputs:
        shape = item_shape(spec, source)
        batch = "[None]" if source.batched else ""
        shape = shape or (1,)  # a list of one number in JSON
        if spec.datatype == "BYTES":
            example.append(f'        {quoted(spec.name)}: "a text",')
            read = f"self.text(payload, {quoted(spec.name)})"
            made = f"np.full({(1,) * (source.batched + len(shape))}, {read}, object)"
        else:
            example.append(f"        {quoted(spec.name)}: np.zeros({shape}).tolist(),")
            kind = kind_of(spec.datatype)
            made = f'self.numbers(payload, {quoted(spec.name)}).astype("{kind}"){batch}'
        lines.append(f"                {quoted(spec.name)}: {made},")
    return {
        "example": "\n".join(example),
        "inputs": "\n".join(lines),
        "result": listed(source, single=not source.batched),
    }


def item_shape(spec: TensorSpec, source: Source) -> tuple[int, ...]:
    """Return the shape of one item of an input, with 1 for each size that varies."""
    return tuple(max(1, size) for size in spec.shape[source.batched :])


WRITERS = {PICTURE: of_picture, TEXT: of_text, TENSORS: of_tensors}
