"""Which objects are in the picture, and where? For models with YOLO's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.families.base.dispatch_toml import (
    COUNT,
    FLAG,
    SIZE,
    TENSOR,
    key,
    labels_key,
    one_of,
)
from clients.families.base.family import Family, show_spec
from clients.families.base.picture_input import (
    PictureInput,
    PictureKeys,
    complete_keys,
    picture_input,
)
from clients.images.boxes import (
    LAYOUTS,
    MOST_SHARE,
    NOT_THIS_HEAD,
    Array,
    Objects,
    best_first,
    best_objects,
    is_turned,
    not_this_head,
    sure_objects,
    yolov5_candidates,
    yolov8_candidates,
)
from clients.images.drawing import Box, as_object, draw_boxes
from clients.images.pictures import EXAMPLE, room
from clients.images.resizing import Letterbox
from clients.triton.server import Hints, Signature, Tensors, TensorSpec

# What the authors of classes import from here.
__all__ = ["Detection", "Letterbox", "best_objects", "yolov5_candidates", "yolov8_candidates"]

# One thread of the web worker answers a request; the cores are for the models.
cv2.setNumThreads(1)

PIXEL = 1.0  # the error of a box's side in half precision
INSIDE_OUT = "the right side of a box is left of its left side, or its lower above"


@dataclass(frozen=True, kw_only=True)
class DetectionKeys(PictureKeys):
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
    output: str = key(TENSOR, "the output with the boxes, where there are several", "")


@dataclass(frozen=True)
class DetectorPlan:
    """How a model takes pictures and answers boxes."""

    input: PictureInput  # the input tensor
    size: tuple[int, int]  # height and width of the letterboxed picture, in pixels
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
        self.prepared = complete_keys(self, self.layout.usual)
        if self.keys.extra_columns == 1:
            fix = "rotated boxes (OBB) are not served: leave `family` out, or write a class"
            raise self.mistake("extra_columns", "is 1, as for an angle", fix)

    def fit(self, signature: Signature) -> DetectorPlan:
        taken = picture_input(self, signature, self.prepared)
        output = self.table(signature, taken)
        others = [taken.rest_of(one) for one in signature.outputs]
        masks = max((rest[0] for rest in others if len(rest) == 3 and rest[0] > 0), default=0)
        sizes = taken.rest_of(output)
        turned = is_turned(self.layout, sizes, len(self.labels))
        plan = DetectorPlan(taken, taken.size(self, "size"), output, masks, turned)
        sizes = sizes[::-1] if turned else sizes
        return (
            plan if sizes[self.layout.axis] == -1 else replace(plan, extra=self.behind(sizes, plan))
        )

    def table(self, signature: Signature, taken: PictureInput) -> TensorSpec:
        """Return the output with the boxes: the one that is named, or the only table."""
        tables = [one for one in signature.outputs if len(taken.rest_of(one)) == 2]
        if not tables:
            there = ", ".join(map(show_spec, signature.outputs))
            raise self.misfit(f"{there} is no table of boxes")
        return self.tensor(tables, "output")

    def behind(self, sizes: Sequence[int], plan: DetectorPlan) -> int:
        """Return the count of numbers behind the classes of a box, in an output of these sizes.

        Raises ClientDisabled: it does not match `labels`, or is another layout's.
        """
        layout, lines = self.layout, len(self.labels)
        wanted = layout.before + layout.classes * lines
        left, extra = sizes[layout.axis] - wanted, self.keys.extra_columns
        if extra is None:
            extra = plan.masks if left == plan.masks else 0
        if left != extra:
            raise self.mistake(
                "output_layout",
                f'is "{self.keys.output_layout}", where a box is {layout.box}: {wanted + extra} '
                f"numbers, as `labels` has {lines} lines; but {show_spec(plan.output)} has "
                f"{sizes[layout.axis]}",
                "write another one, give `labels` a line for each class, or write `extra_columns` "
                "for what is behind the classes, such as a pose; rotated boxes (OBB) are not "
                "served",
            )
        return extra

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
        boxed = self.each(payloads, lambda payload: taken.fitted(self.picture(payload), plan.size))
        return taken.tensor([taken.scaled_planes(box.shades) for box in boxed]), boxed

    def objects(self, output: Array, box: Letterbox, plan: DetectorPlan) -> list[Any]:
        """Return the answer's rows for one picture; `output` is as the layout has it."""
        settings = self.request.parameters
        classes, scores, corners = self.found(output, plan)
        if (corners[:, 2:] < corners[:, :2] - PIXEL).any():
            raise not_this_head(INSIDE_OUT)
        corners[:, 2:] = np.maximum(corners[:, :2], corners[:, 2:])
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
            unit = ("parts of the picture's sides", "pixels")
            came, said = unit[::-1] if shares else unit
            fix = "change `normalised`, or the layout, in dispatch.toml: rtdetr has parts"
            raise not_this_head(f"the boxes are {came}, no {said}", fix)
        height, width = plan.size
        return boxes.astype(np.float32) * (width, height, width, height) if shares else boxes

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        if self.request.parameters["format"] == "objects":
            boxes = [
                Box(**one["box"], label=one["label"], score=one["score"], index=one["index"])
                for one in result
            ]
        else:
            boxes = [
                Box(x1, y1, x2, y2, self.labels[kind], score, kind)
                for kind, score, x1, x2, y1, y2, _, _ in result
            ]
        with room.kept():
            return draw_boxes(self.picture(payload), boxes, media_type, self.request.time_left)
