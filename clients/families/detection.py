"""Which objects are in the picture, and where? For models with YOLO's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.errors import ClientDisabled, ModelFailed
from clients.families.base.dispatch_toml import (
    COUNT,
    FLAG,
    SIZE,
    TENSOR,
    Keys,
    key,
    labels_key,
    one_of,
)
from clients.families.base.family import Family, show_spec
from clients.families.base.picture_input import FileInput, PictureInput, picture_input
from clients.images.boxes import (
    LAYOUTS,
    MOST_QUERIES,
    MOST_SHARE,
    NOT_THIS_HEAD,
    Array,
    Objects,
    OutputLayout,
    best_first,
    best_objects,
    is_end2end,
    is_likely,
    is_turned,
    not_this_head,
    sure_objects,
    yolov5_candidates,
    yolov8_candidates,
)
from clients.images.drawing import Box, as_object, draw_boxes, without_box
from clients.images.pictures import EXAMPLE, room
from clients.images.resizing import Letterbox
from clients.triton.server import Hints, Signature, Tensors, TensorSpec

# What the authors of classes import from here.
__all__ = ["Detection", "Letterbox", "best_objects", "yolov5_candidates", "yolov8_candidates"]

# One thread of the web worker answers a request; the cores are for the models.
cv2.setNumThreads(1)

PIXEL = 1.0  # the error of a box's side in half precision
INSIDE_OUT = "the right side of a box is left of its left side, or its lower above"
ROTATED = (
    "rotated boxes (OBB) are not served: leave `family` out, with its keys, to serve plain "
    "tensors, or write a class"
)


@dataclass(frozen=True, kw_only=True)
class DetectionKeys(Keys):
    """The keys of this family."""

    output_layout: str = key(one_of(*LAYOUTS), "what the numbers of a box mean")
    labels: str = labels_key()
    size: int | tuple[int, int] | None = key(
        SIZE, "of the letterboxed picture; else that of the model's input", None
    )
    extra_columns: int | None = key(
        COUNT, "numbers behind a box's classes, such as the keypoints of a pose", None
    )
    normalised: bool = key(
        FLAG,
        "whether boxes are parts of the letterboxed picture's sides, not pixels",
        default=False,
    )
    input: str = key(TENSOR, "the input, where there are several", "")
    output: str = key(TENSOR, "the output with the boxes, where there are several", "")


@dataclass(frozen=True)
class DetectorPlan:
    """How a model takes pictures and answers boxes."""

    input: PictureInput | FileInput  # the input tensor
    # Height and width of the letterboxed picture, in pixels; 0 for those of each picture
    size: tuple[int, int]
    output: TensorSpec  # the tensor with the boxes
    masks: int  # the count of coefficients of a box if another output has masks; else 0
    turned: bool  # whether rows and columns of the output are swapped
    # The count of numbers behind the classes of a box; `None` if only an answer shows it
    extra: int | None = None


class Detection(Family[DetectionKeys, DetectorPlan]):
    """Answers `[class_id, score, x1, x2, y1, y2, width, height]` per object.

    The best comes first. Coordinates are pixels of the picture that was sent, and width and height
    are those of that picture.
    """

    keys_type = DetectionKeys
    example = {"img": EXAMPLE}
    parameters = {
        "confidence": Parameter(0.5, 0, 1, "objects with a lower score are left out"),
        "iou": Parameter(0.45, 0, 1, "of two boxes that overlap by more, the better one is kept"),
        "format": FORMAT,
    }
    media = {"picture": "img"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = self.read_labels()
        self.layout = LAYOUTS[self.keys.output_layout]
        if self.keys.extra_columns == 1:
            raise self.mistake("extra_columns", "is 1, as for an angle", ROTATED)

    def fit(self, signature: Signature) -> DetectorPlan:
        taken = picture_input(self, signature)
        output = self.table(signature, taken)
        others = [taken.rest_of(one) for one in signature.outputs]
        masks = max((rest[0] for rest in others if len(rest) == 3 and rest[0] > 0), default=0)
        sizes = taken.rest_of(output)
        turned = is_turned(self.layout, sizes, len(self.labels))
        plan = DetectorPlan(taken, taken.size(self, "size"), output, masks, turned)
        if self.laid(self.layout, sizes)[self.layout.axis] == -1:
            return plan
        return replace(plan, extra=self.behind(sizes, plan))

    def table(self, signature: Signature, taken: PictureInput | FileInput) -> TensorSpec:
        """Return the output with the boxes: the one that is named, or the only table."""
        tables = [one for one in signature.outputs if len(taken.rest_of(one)) == 2]
        there = ", ".join(map(show_spec, signature.outputs))
        if not tables:
            raise self.misfit(f"{there} is no table of boxes")
        if self.keys.output:
            output = self.tensor(signature.outputs, "output")
            if output not in tables:
                raise self.misfit(f"{show_spec(output)} is no table of boxes")
            sizes = taken.rest_of(output)
            places = [one for one in tables if list(taken.rest_of(one)) == [sizes[0], 4]]
            extra = self.keys.extra_columns or 0
            is_open = self.laid(self.layout, sizes)[self.layout.axis] == -1
            # A table that matches the file may have another one beside it.
            if output in places or not places or is_open or self.left(self.layout, sizes) == extra:
                return output
            raise self.misfit(f"it has no table of boxes with their scores, but {there}")
        if len(tables) > 1 and any(one.shape[-1] == 4 for one in tables):
            raise self.misfit(f"it has no table of boxes with their scores, but {there}")
        return self.tensor(tables, "output")

    def behind(self, sizes: Sequence[int], plan: DetectorPlan) -> int:
        """Return the count of numbers behind the classes of a box.

        Raises ClientDisabled: it does not match `labels`, or is another layout's.
        """
        left = self.left(self.layout, sizes)
        extra = self.keys.extra_columns
        if extra is None:
            extra = plan.masks if left == plan.masks else 0
        if left == extra and not is_end2end(self.layout, self.laid(self.layout, sizes)):
            return extra
        raise self.other_numbers(sizes, plan)

    def left(self, layout: OutputLayout, sizes: Sequence[int]) -> int:
        """Return the count of numbers of a box besides its place and its classes."""
        numbers = self.laid(layout, sizes)[layout.axis]
        return numbers - layout.before - layout.classes * len(self.labels)

    def laid(self, layout: OutputLayout, sizes: Sequence[int]) -> Sequence[int]:
        """Return the sizes of an output in the order of a layout."""
        return sizes[::-1] if is_turned(layout, sizes, len(self.labels)) else sizes

    def other_numbers(self, sizes: Sequence[int], plan: DetectorPlan) -> ClientDisabled:
        """Return the error for boxes of other numbers than the file says, with what would suit."""
        output, lines = show_spec(plan.output), len(self.labels)
        known = {0, plan.masks, self.keys.extra_columns}
        fixes = []
        for name, one in LAYOUTS.items():
            fits = self.left(one, sizes) in known or (
                one.queries and is_end2end(self.layout, sizes)
            )
            if one is not self.layout and fits and is_likely(one, self.laid(one, sizes)):
                fixes.append(f'"{name}" where a box is {one.box}')
        if fixes:
            what = (
                f'is "{self.keys.output_layout}", but `labels` has {lines} lines and it is {output}'
            )
            return self.mistake("output_layout", what, f"write {', or '.join(fixes)}")
        laid, left = self.laid(self.layout, sizes), self.left(self.layout, sizes)
        numbers = laid[self.layout.axis] - self.layout.before
        classes = numbers - (self.keys.extra_columns or (plan.masks < numbers) * plan.masks)
        if numbers < self.layout.classes or not is_likely(self.layout, laid):
            return self.misfit(f"{output} has no boxes with a score for each class")
        if left == 0:
            return self.mistake("extra_columns", f"is too many for {output}", "leave it out")
        if self.layout.classes:
            fixes.append(f"give it {max(1, classes)} lines, one for each class")
        if left > plan.masks and not self.keys.extra_columns:
            fixes.append(
                f"write `extra_columns = {left}` where the last {left} are no classes but the "
                "keypoints of a pose or the coefficients of a mask"
            )
        if left == 1:
            fixes[-1] = ROTATED
        what = f"names a file of {lines} lines, but a box of {output} has {numbers} numbers behind"
        return self.mistake("labels", f"{what} its place", ", or ".join(fixes) or "leave it out")

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        inputs, boxed = self.placed(payloads, plan)
        name, above = plan.output.name, {}
        if self.layout.objectness is not None:
            above[name] = self.layout.objectness, self.request.parameters["confidence"]
        hints = Hints(above=above)
        answer = self.infer(inputs, outputs=[name], hints=hints)[name]
        tables = answer.reshape(len(payloads), *answer.shape[-2:])
        if plan.turned:
            tables = tables.swapaxes(1, 2)
        return [self.objects(*pair, plan) for pair in zip(tables, boxed, strict=True)]

    def placed(
        self, payloads: Sequence[Payload], plan: DetectorPlan
    ) -> tuple[Tensors, list[Letterbox]]:
        """Return the input tensor, and where each picture is in the model's rectangle."""
        taken = plan.input
        if isinstance(taken, FileInput):
            files = self.each(payloads, self.picture_file)
            place = Letterbox.filling if self.layout.shares else Letterbox.inside
            places = [place(one.size, plan.size if any(plan.size) else one.size) for one in files]
            return taken.tensor(files), places
        around = Letterbox.stretched if self.layout.shares else Letterbox.around
        boxed = self.each(payloads, lambda payload: around(self.picture(payload), plan.size))
        pixels = [box.pixels for box in boxed]
        if taken.dtype == np.uint8:  # its whole numbers are 0 to 255, not parts of 1
            pixels = [(one * 255).round() for one in pixels]
        return taken.tensor(pixels), boxed

    def objects(self, output: Array, box: Letterbox, plan: DetectorPlan) -> list[Any]:
        """Return the answer's rows for one picture; `output` is as the layout has it."""
        if not any(plan.size):
            plan = replace(plan, size=(box.height, box.width))
        settings = self.request.parameters
        classes, scores, corners = self.found(output, plan)
        corners = right_way_round(corners)
        found = [
            Box(x1, y1, x2, y2, self.labels[kind], round(min(float(score), 1.0), 4), int(kind))
            for kind, score, (x1, y1, x2, y2) in zip(
                classes, scores, box.back(corners).round(2).tolist(), strict=True
            )
        ]
        if settings["format"] == "objects":
            return [as_object(one) for one in found]
        return [
            [one.index, one.score, one.x1, one.x2, one.y1, one.y2, box.width, box.height]
            for one in found
        ]

    def found(self, output: Array, plan: DetectorPlan) -> Objects:
        """Return the objects of one picture, best first, in pixels of the rectangle.

        Raises ModelFailed: a model with this layout cannot answer such boxes, scores or classes.
        """
        layout, confidence = self.layout, self.request.parameters["confidence"]
        extra = self.behind(output.shape, plan) if plan.extra is None else plan.extra
        numbers = output.shape[layout.axis] - extra
        output = output[:, :numbers] if layout.axis else output[:numbers]
        boxes, rest = layout.candidates(output, confidence)
        boxes = self.in_pixels(boxes, plan)
        if not layout.classes:
            scores, kinds = rest[:, 0], rest[:, 1].astype(np.intp)
            if kinds.size and kinds.max() >= len(self.labels):
                raise not_this_head(
                    f"a box is of the class {kinds.max()}, but `labels` has "
                    f"{len(self.labels)} lines",
                    f"give `labels` a line for each class, from that of class 0 on, or "
                    f"{NOT_THIS_HEAD}",
                )
            return best_first(kinds, scores, boxes)
        if layout.queries:
            return best_first(*sure_objects(boxes, rest, confidence))
        return best_objects(boxes, rest, confidence=confidence, iou=self.request.parameters["iou"])

    def in_pixels(self, boxes: Array, plan: DetectorPlan) -> Array:
        """Return boxes in pixels of the rectangle.

        Raises ModelFailed: they are not finite, or not in the unit that the file says.
        """
        if not boxes.size:
            return boxes
        if not np.isfinite(boxes).all():
            raise not_this_head("a box is not finite")
        sides = boxes[:, 2:] if self.layout.classes else boxes[:, 2:] - boxes[:, :2]
        # Unsure boxes may be inside out with any model; boxes that are answered must not be.
        if (sides.min(1) < -PIXEL).mean() > 0.5:
            raise not_this_head(INSIDE_OUT)
        shares = self.layout.shares or self.keys.normalised
        if (np.abs(boxes).max() <= MOST_SHARE) != shares:
            raise self.other_unit(plan, shares=shares)
        height, width = plan.size
        return boxes.astype(np.float32) * (width, height, width, height) if shares else boxes

    def other_unit(self, plan: DetectorPlan, *, shares: bool) -> ModelFailed:
        """Return the error for boxes in pixels instead of shares, or the reverse.

        An output of some hundreds of boxes is RT-DETR's: YOLOv8's numbers in YOLOv5's order.
        """
        if shares:
            fix = (
                "write another `output_layout`" if self.layout.shares else "leave `normalised` out"
            )
            what = "the boxes are pixels, no parts of the picture's sides"
        else:
            few = self.layout.objectness is not None and plan.output.shape[-2] <= MOST_QUERIES
            fix = 'write `output_layout = "rtdetr"`' if few else "write `normalised = true`"
            what = "the boxes are parts of the picture's sides, no pixels"
        return not_this_head(what, f"{fix} in dispatch.toml")

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        if self.request.parameters["format"] == "objects":
            boxes = [Box(**one["box"], **without_box(one)) for one in result]
        else:
            boxes = [
                Box(x1, y1, x2, y2, self.labels[kind], score, kind)
                for kind, score, x1, x2, y1, y2, _, _ in result
            ]
        with room.kept():
            return draw_boxes(self.picture(payload), boxes, media_type, self.request.time_left)


def right_way_round(corners: Array) -> Array:
    """Return the corners of boxes, with no right side left of the left side.

    Raises ModelFailed: a box is inside out by more than a pixel.
    """
    if (corners[:, 2:] < corners[:, :2] - PIXEL).any():
        raise not_this_head(INSIDE_OUT)
    return np.concatenate([corners[:, :2], np.maximum(corners[:, :2], corners[:, 2:])], axis=1)
