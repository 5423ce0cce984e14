"""Writes a class for a model's file: what reads a payload, and asks for the model's tensors."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from clients.errors import InferenceError
from clients.model_files.model_folders import CONFIG
from clients.testing import OnnxModels, answer, clients_in
from container.trouble import Trouble
from tool.placing import beside, put
from tool.scaffold.families import plans
from tool.scaffold.folder import TEMPLATE, config, kind_of, write_labels
from tool.scaffold.new_model import TOKENIZER, source_of, tokenizer_for
from tool.scaffold.options import KINDS, PICTURE, refuse_to_overwrite
from tool.scaffold.pictures import CLASSIFIER_SIDE, DETECTOR_SIDE, pixels
from tool.scaffold.plan import FamilyPlan, quoted
from tool.scaffold.source import ModelSource

BOXES = re.compile(r'output_layout = "(yolov5|yolov8)"')


def write(
    options: argparse.Namespace, names: Mapping[str, str], files: tuple[Path, Path]
) -> FamilyPlan:
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
    with beside(root) as place:
        folder = place / options.name
        source.copy_to(folder / "1")
        (folder / CONFIG).write_text(config(options.name, source, plan), encoding="utf-8")
        if plan.labels:
            write_labels(folder, plan)
        if plan.tokens:
            tokenizer_for(options, source, folder / TOKENIZER)
        for path, template in zip(
            files, (f"client_{KINDS[plan.family]}", "test_client"), strict=True
        ):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            text = rendered(template, names, source, plan)
            (place / path).write_text(text, encoding="utf-8")
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


def rendered(template: str, names: Mapping[str, str], source: ModelSource, plan: FamilyPlan) -> str:
    """Return what a template makes of a model's tensors.

    Args:
        template: the name of its file.
        names: of the model, the class and the file.
        source: the model.
        plan: how a family would serve it.

    """
    from jinja2 import Environment, FileSystemLoader

    found = BOXES.search("\n".join(plan.lines))
    taken, size = None, tuple[int, ...]()
    if KINDS[plan.family] == PICTURE and plan.family != "picture-file":
        taken = pixels(source)
        side = DETECTOR_SIDE if plan.family == "detection" else CLASSIFIER_SIDE
        size = tuple(side if one == -1 else one for one in (taken.height, taken.width))
    # Python's code, in which nothing of HTML is to be written otherwise.
    templates = Environment(  # noqa: S701
        loader=FileSystemLoader(TEMPLATE),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template(f"{template}.py.jinja").render(
        names,
        inputs=source.inputs,
        input=source.inputs[0] if source.inputs else None,
        outputs=source.outputs,
        batched=source.batched,
        pixels=taken,
        size=size,
        boxes=found[1] if found and source.batched and len(source.outputs) == 1 else "",
        quoted=quoted,
        type=lambda spec: kind_of(spec.datatype),
        # With 1 for each size that varies; in JSON a scalar is a list of one number.
        item_shape=lambda spec: tuple(max(1, n) for n in spec.shape[source.batched :]) or (1,),
    )
