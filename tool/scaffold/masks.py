"""The families that answer vectors, masks and pictures: what of their settings a file shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clients.triton.server import TensorSpec
from tool.scaffold.pictures import (
    AS_IN_PADDLE,
    CLASSIFIER_SIDE,
    FLOATS,
    Pixels,
    describe_preparation,
    pixels,
)
from tool.scaffold.plan import CHECK, SCORES, FamilyPlan, Misfit, several, show
from tool.scaffold.source import ModelSource
from tool.scaffold.texts import VECTORS, name_output

SIDE = 256  # of a tried picture, where any size will do
WIDTH = 64  # of the shortest vectors that are usual
SMALLER, LARGER = 8, 8  # by how much an answer for each pixel may differ from the picture's sides
CLASSES = (*SCORES, "seg", "mask", "class")  # in the name of an output
DEPTHS = ("depth", "disp")


class PerPixel(NamedTuple):
    """An output with numbers for each pixel."""

    spec: TensorSpec
    channels: int  # how many for each
    scale: float  # its sides by the picture's
    numbers: npt.NDArray[np.generic]  # of an answer


def is_named(spec: TensorSpec, words: tuple[str, ...]) -> bool:
    return any(word in spec.name.lower() for word in words)


def per_pixel(source: ModelSource, taken: Pixels) -> list[PerPixel]:
    """Return the outputs with a place for each pixel of the picture, or of every eighth."""
    shape = taken.shape(SIDE)
    answers = source.run({taken.spec.name: shape})
    at = 0 if taken.layout == "NCHW" else 2
    high, wide = [size for place, size in enumerate(shape[-3:]) if place != at]
    found = []
    for spec in source.outputs:
        sizes = list(answers[spec.name].shape[len(taken.spec.shape) - 3 :])
        channels = sizes.pop(at) if len(sizes) == 3 else 1
        if len(sizes) == 2 and high <= SMALLER * sizes[0] and sizes[0] <= LARGER * high:
            scale = sizes[0] / high
            if abs(sizes[1] - wide * scale) < 1 and sizes[0] > 1:
                found.append(PerPixel(spec, channels, scale, answers[spec.name]))
    if not found:
        raise Misfit(f"{several(source.outputs)} has no numbers for each pixel")
    return found


def segmentation(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served by its masks.

    It is sure where the output is named so, the labels are its, or its numbers are opacities.
    """
    taken = pixels(source)
    how = tuple(describe_preparation(source, taken, "size"))
    for spec, channels, scale, numbers in per_pixel(source, taken):
        if scale > 1 or channels > 256:
            continue
        why = f"{show(taken.spec)} takes pictures, and {show(spec)} has "
        if channels == 1 and spec.datatype in FLOATS:
            inside = bool(0 <= numbers.min() <= numbers.max() <= 1)
            plan = FamilyPlan("segmentation", f"{why}an opacity for each pixel")
            if not inside:
                plan = plan.and_lines(f'{CHECK}or "relative"', 'range = "logits"')
            elif taken.width == -1:
                note = "detectors of lines of text look the same: those are served by --family ocr"
                plan = plan.and_lines(f"{CHECK}{note}")
            depth = is_named(spec, DEPTHS) or taken.channels == 1
            plan = replace(plan, proven=inside and not depth and not source.given)
        else:
            classes = channels if channels > 1 else 0
            names = source.labels if len(source.labels) == (classes or len(source.labels)) else ()
            plan = FamilyPlan("segmentation", f"{why}{classes or 'its'} classes for each pixel")
            plan = plan.with_labels(names)
            sure = bool(names) or (is_named(spec, CLASSES) and channels != 3) or not classes
            plan = replace(plan, proven=sure)
        yield name_output(source, plan, spec).and_lines(*how)
        if plan.proven:  # others are of layers below
            return


def picture_to_picture(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served by the pictures that it makes.

    It is sure where these are larger than the pictures sent, or named as depths.
    """
    taken = pixels(source)
    found = [one for one in per_pixel(source, taken) if one.channels in (1, 3)]
    if not found or source.given:
        raise Misfit(f"{several(source.outputs)} is no picture of three channels, or one")
    for spec, channels, scale, numbers in found:
        what = "a picture" if channels == 3 else "a grey picture"
        plan = FamilyPlan(
            "picture-to-picture",
            f"{show(taken.spec)} takes pictures, and {show(spec)} is {what}, {scale:g} times as "
            "large",
        )
        if taken.layout != "NCHW":
            plan = plan.and_lines(f'layout = "{taken.layout}"')
        least, greatest = float(numbers.min()), float(numbers.max())
        depth = channels == 1 and is_named(spec, DEPTHS)
        if depth or not -1 <= least <= greatest <= 2:
            usual = "relative" if channels == 1 else "0-255"
            plan = plan.and_lines(
                f"{CHECK}for pixels of 0 to 1 it answers {least:.3g} to {greatest:.3g}",
                f'range = "{usual}"',
            )
        else:
            plan = plan.and_lines(f"{CHECK}pixels are 0 to 1, of the picture sent and the answer")
        if (taken.height, taken.width) == (-1, -1):
            plan = plan.and_lines(
                f"{CHECK}pictures keep their size; some models need multiples, such as 32",
                "# multiple = 32",
            )
        yield replace(name_output(source, plan, spec), proven=scale > 1 or depth)


def picture_embedding(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would make vectors of pictures, that of the whole picture first.

    It is sure where the output is named so: scores of classes look the same.
    """
    taken = pixels(source)
    answers = source.run({taken.spec.name: taken.shape(CLASSIFIER_SIDE)})
    batch = len(taken.spec.shape) == 4
    found = []
    for spec in source.outputs:
        sizes = [size for size in answers[spec.name].shape[batch:] if size != 1]
        named = is_named(spec, VECTORS)
        likely = len(sizes) == 1 and sizes[0] >= WIDTH and not is_named(spec, SCORES)
        if spec.datatype in FLOATS and (likely or (len(sizes) in (1, 2) and named)):
            # A pooler's output was made for another task than that of comparing.
            found.append((not named, "pool" in spec.name, len(sizes), spec))
    if not found or source.given:
        raise Misfit(f"{several(source.outputs)} has no vector of a picture")
    for unnamed, _, parts, spec in sorted(found, key=lambda one: one[:3]):
        what = "a vector" if parts == 1 else "a vector for each part"
        why = f"{show(taken.spec)} takes pictures, and {show(spec)} is {what}"
        plan = FamilyPlan("picture-embedding", why)
        if parts == 2:
            plan = plan.and_lines(f'{CHECK}or "mean"', 'pooling = "first"')
        plan = name_output(source, plan, spec).and_lines(*describe_preparation(source, taken))
        yield replace(plan, proven=taken.is_shown and not unnamed)


def ocr(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served as a detector of lines of text: only the author knows."""
    taken = pixels(source)
    if taken.channels != 3:
        raise Misfit(f"{show(taken.spec)} is no picture of three channels")
    for one in per_pixel(source, taken):
        numbers = one.numbers
        if one.channels == one.scale == 1 and 0 <= numbers.min() <= numbers.max() <= 1:
            why = f"{show(one.spec)} is how likely each pixel is inside a text (DB, as in PP-OCR)"
            yield name_output(source, FamilyPlan("ocr", why), one.spec).and_lines(
                f"{CHECK}the models that read the lines, of the families ctc and classification",
                '# recogniser = "the name of a model"',
                '# angle = "the name of a model"',
                f"{CHECK}PP-OCR's pictures are prepared so:",
                *AS_IN_PADDLE,
            )
            return
    raise Misfit(f"{several(source.outputs)} has no likelihood for each pixel")
