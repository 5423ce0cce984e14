"""The families that answer vectors, masks and pictures: what of their settings a file shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
from tool.scaffold.plan import CHECK, SCORES, FamilyPlan, Misfit, is_named
from tool.scaffold.source import ModelSource
from tool.scaffold.texts import VECTORS, name_output

SIDE = 256  # of a tried picture, where any size will do
WIDTH = 64  # of the shortest vectors that are usual
TIMES = 8  # by which the sides of a mask or picture may differ from those sent
CLASSES = (*SCORES, "seg", "mask", "class")  # in the name of an output
DEPTHS = ("depth", "disp")


def per_pixel(
    source: ModelSource, taken: Pixels
) -> Iterator[tuple[TensorSpec, int, float, npt.NDArray[Any]]]:
    """Yield the outputs over the picture: with their channels, scale and numbers."""
    shape, at = taken.shape(SIDE), 0 if taken.layout == "NCHW" else 2
    answers = source.run({taken.spec.name: shape})
    for spec in source.outputs:
        sizes = list(answers[spec.name].shape[len(shape) - 3 :])
        channels = sizes.pop(at) if len(sizes) == 3 else 1
        if len(sizes) == 2:
            scales = np.array(sizes) / np.delete(shape[-3:], at)
            if np.ptp(scales) < 1 / SIDE and 1 / TIMES <= scales[0] <= TIMES:
                yield spec, channels, float(scales[0]), answers[spec.name]


def segmentation(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served by its masks.

    It is sure where the output is named so, the labels are its, or its numbers are opacities.
    """
    taken = pixels(source)
    how = tuple(describe_preparation(source, taken, "size"))
    found = [one for one in per_pixel(source, taken) if one[2] <= 1]
    for spec, channels, _, numbers in found:
        why = f"{taken.spec} takes pictures, and {spec} has "
        if channels == 1 and spec.datatype in FLOATS:
            plan = FamilyPlan("segmentation", f"{why}an opacity for each pixel")
            sure = bool(0 <= numbers.min() <= numbers.max() <= 1) and taken.channels == 3
            if not sure:
                plan = plan.and_lines(f'{CHECK}or "0-1", or "relative"', 'range = "logits"')
            elif taken.width == -1:
                note = "detectors of lines of text look the same: those are served by --family ocr"
                plan = plan.and_lines(f"{CHECK}{note}")
            sure &= not is_named(spec, DEPTHS) and not source.given
        else:
            names = source.labels if channels in (1, len(source.labels)) else ()
            plan = FamilyPlan("segmentation", f"{why}classes for each pixel").with_labels(names)
            sure = bool(names) or channels == 1 or (channels != 3 and is_named(spec, CLASSES))
        yield replace(name_output(source, plan, spec).and_lines(*how), proven=sure)
        if sure:  # others are of layers below
            return


def picture_to_picture(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served by the pictures that it makes.

    It is sure where these are larger than the pictures sent, or named as depths.
    """
    taken = pixels(source)
    found = [one for one in per_pixel(source, taken) if one[1] in (1, 3)]
    for spec, channels, scale, numbers in () if source.given else found:
        why = f"{taken.spec} takes pictures, and {spec} is one of {scale:g} times that"
        plan = name_output(source, FamilyPlan("picture-to-picture", f"{why} size"), spec)
        plan = plan.and_lines(*taken.layout_line())
        least, greatest = numbers.min(), numbers.max()
        plan = plan.and_lines(
            f"{CHECK}for pixels of 0 to 1 the answer has {least:.3g} to {greatest:.3g}"
        )
        depth = channels == 1 and is_named(spec, DEPTHS)
        if depth or not -1 <= least <= greatest <= 2:
            plan = plan.and_lines('range = "relative"' if channels == 1 else 'range = "0-255"')
        yield replace(plan, proven=scale > 1 or depth)


def picture_embedding(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would make vectors of pictures, that of the whole picture first.

    It is sure where the output is named so: scores of classes look the same.
    """
    taken = pixels(source)
    answers = source.run({taken.spec.name: taken.shape(CLASSIFIER_SIDE)})
    found = []
    for spec in source.outputs:
        sizes = [one for one in answers[spec.name].shape[len(taken.spec.shape) - 3 :] if one != 1]
        named = is_named(spec, VECTORS)
        likely = len(sizes) == 1 and sizes[0] >= WIDTH and not is_named(spec, SCORES)
        if spec.datatype in FLOATS and (likely or (len(sizes) in (1, 2) and named)):
            # A pooler's output was made for another task than that of comparing.
            found.append((not named, "pool" in spec.name, len(sizes), spec))
    ranked = [] if source.given else sorted(found, key=lambda one: one[:3])
    for unnamed, _, parts, spec in ranked:
        what = "a vector" if parts == 1 else "a vector for each part"
        why = f"{taken.spec} takes pictures, and {spec} is {what}"
        plan = FamilyPlan("picture-embedding", why)
        if parts == 2:
            plan = plan.and_lines(f'{CHECK}or "mean"', 'pooling = "first"')
        plan = name_output(source, plan, spec).and_lines(*describe_preparation(source, taken))
        yield replace(plan, proven=taken.is_shown and not unnamed)


def ocr(source: ModelSource) -> Iterator[FamilyPlan]:
    """Yield how the model would be served as a detector of lines of text: only the author knows."""
    taken = pixels(source)
    if taken.channels != 3:
        raise Misfit(f"{taken.spec} is no picture of three channels")
    for spec, channels, scale, numbers in per_pixel(source, taken):
        if channels == scale == 1 and 0 <= numbers.min() <= numbers.max() <= 1:
            why = f"{spec} is how likely each pixel is inside a text (DB, as in PP-OCR)"
            yield name_output(source, FamilyPlan("ocr", why), spec).and_lines(
                f"{CHECK}the models that read the lines, of the families ctc and classification",
                '# recogniser = "the name of a model"',
                '# angle = "the name of a model"',
                f"{CHECK}PP-OCR's pictures are prepared so:",
                *AS_IN_PADDLE,
            )
            return
