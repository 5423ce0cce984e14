"""What a detector's outputs are, by its layout, its keys and its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clients.families.base.family import Family
from clients.families.base.picture_input import PictureInput
from clients.images.boxes import Array, Head, OutputLayout, grid_priors, is_turned
from clients.tensors.signature import describe_tensors
from clients.triton.server import Signature, TensorSpec

BEHIND = ("keypoints", "rotated", "extra_columns")  # the keys for what is behind a box's classes


@dataclass(frozen=True)
class DetectorPlan:
    """How a model takes pictures and answers boxes."""

    input: PictureInput  # the input tensor
    outputs: tuple[TensorSpec, ...]  # with the boxes, as the layout has them
    head: Head  # what they are read by
    counted: bool  # whether it is known how many numbers are behind the classes of a box
    turned: bool  # whether rows and columns of the output are swapped
    prototypes: str = ""  # the output with the prototypes of masks, if any
    masks: int = 0  # how many prototypes there are
    points: int = 0  # the count of numbers of a keypoint: x, y, and its score if there are three

    def by_picture(self, name: str, output: Array, count: int, layout: OutputLayout) -> Array:
        """Return an output [count, …] with an array for each picture, as the layout has it."""
        maps = name == self.prototypes or (layout.parts and layout.axis == 0)
        found = output.reshape(count, *output.shape[-3 if maps else -2 :])
        return found.swapaxes(1, 2) if self.turned and not maps else found


def fit_detector(
    family: Family[Any, Any], signature: Signature, taken: PictureInput, layout: OutputLayout
) -> DetectorPlan:
    """Find the outputs of a detector.

    Raises ClientDisabled: the model has not those of the layout, or its keys are other ones.
    """
    keys, size = family.keys, taken.size(family, "size")

    def rank_of(output: TensorSpec) -> int:
        return len(taken.rest_of(output))

    if layout.parts:
        outputs = outputs_of_parts(family, signature, taken, layout)
        priors = read_priors(family, size, layout, taken.rest_of(outputs[0])[0])
        points = 2 * (len(outputs) > len(layout.parts(1)))
        head = Head(size, priors=priors)
        return DetectorPlan(taken, outputs, head, counted=True, turned=False, points=points)
    tables = [one for one in signature.outputs if rank_of(one) == 2]
    if not tables:
        raise family.misfit(f"{describe_tensors(signature.outputs)} is no table of boxes")
    output = family.tensor(tables, "output")
    maps = [(taken.rest_of(one)[0], one.name) for one in signature.outputs if rank_of(one) == 3]
    masks, prototypes = max(maps, default=(0, ""))
    sizes = taken.rest_of(output)
    turned = is_turned(layout, sizes, len(family.labels))
    sizes = sizes[::-1] if turned else sizes
    plan = DetectorPlan(
        taken,
        (output,),
        Head(size, priors=read_priors(family, size, layout, sizes[1 - layout.axis])),
        counted=sizes[layout.axis] != -1,
        turned=turned,
        prototypes=prototypes if masks > 0 else "",
        masks=max(0, masks),
        points=(keys.keypoints or (0, 0))[1],
    )
    if not plan.counted:
        return plan
    extra = count_behind(family, layout, plan, sizes[layout.axis])
    found = replace(plan, head=replace(plan.head, extra=extra))
    return found if extra == masks else replace(found, prototypes="", masks=0)


def outputs_of_parts(
    family: Family[Any, Any], signature: Signature, taken: PictureInput, layout: OutputLayout
) -> tuple[TensorSpec, ...]:
    """Return the outputs of a layout that has several, in its order."""
    named, layout_parts = family.keys.outputs, layout.parts or (lambda _: ())
    specs = {one.name: one for one in signature.outputs}
    if unknown := [name for name in named if name not in specs]:
        fix = f"the model has {', '.join(specs)}: write those of them"
        raise family.mistake("outputs", f'has "{unknown[0]}"', fix)
    left = [specs[name] for name in named or specs]
    left = [one for one in left if len(taken.rest_of(one)) == (2 if layout.axis else 3)]

    def numbers(output: TensorSpec) -> int:
        return taken.rest_of(output)[layout.axis]

    found = []
    for count in layout_parts(len(family.labels)):
        match = next((one for one in left if numbers(one) in (count, -1)), None)
        if match is None:
            raise family.misfit(
                f"of {describe_tensors(signature.outputs)} none has {count} numbers for "
                f"{layout.box}, as `labels` has {len(family.labels)} lines"
            )
        left.remove(match)
        found.append(match)
    # One more has the coordinates of keypoints.
    return (*found, *[one for one in left if numbers(one) > 0 and numbers(one) % 2 == 0][:1])


def read_priors(
    family: Family[Any, Any], size: tuple[int, int], layout: OutputLayout, count: int
) -> Array:
    """Return what boxes are relative to, in pixels; none where they are relative to nothing."""
    if layout.grids:
        return grid_priors(layout, size, count)
    if not layout.parts or layout.axis == 0:
        return Head().priors
    path = family.folder / family.keys.priors
    fix = "write the name of a file of numpy.save beside config.pbtxt, with float32 [boxes, 4]"
    if not family.keys.priors:
        raise family.mistake("priors", "is missing", fix)
    try:
        shares = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        what = f"is {path.name}, which cannot be read ({type(error).__name__})"
        raise family.mistake("priors", what, fix) from error
    if not isinstance(shares, np.ndarray) or shares.ndim != 2 or shares.shape[1] != 4:
        raise family.mistake("priors", f"is {path.name}, which has not [boxes, 4]", fix)
    priors: Array = shares.astype(np.float32) * np.array([size[1], size[0]] * 2, np.float32)
    return priors


def count_behind(
    family: Family[Any, Any], layout: OutputLayout, plan: DetectorPlan, count: int
) -> int:
    """Return how many of the `count` numbers of a box are behind its classes.

    Raises ClientDisabled: it does not match `labels`, or is another layout's.
    """
    keys, lines = family.keys, len(family.labels)
    wanted = layout.before + layout.classes * lines
    left, extra = count - wanted, keys.extra_columns or int(keys.rotated)
    extra = math.prod(keys.keypoints) if keys.keypoints else extra
    if not extra and left == plan.masks:
        extra = plan.masks
    if left != extra:
        raise family.mistake(
            "output_layout",
            f'is "{keys.output_layout}", where a box is {layout.box}: {wanted + extra} numbers, as '
            f"`labels` has {lines} lines; but {plan.outputs[0]} has {count}",
            "write another one, give `labels` a line for each class, or say what is behind the "
            "classes: `keypoints` of a pose, `rotated` for boxes with an angle (OBB), or "
            "`extra_columns`",
        )
    return extra
