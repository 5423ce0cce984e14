"""Which objects are in the picture, and where? For models whose outputs are boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

import numpy as np

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.families.base.detector import BEHIND, DetectorPlan, count_behind, fit_detector
from clients.families.base.dispatch_toml import (
    COUNT,
    FLAG,
    INSIDE,
    POINTS,
    SIZE,
    TENSOR,
    TENSORS,
    key,
    labels_key,
    one_of,
)
from clients.families.base.family import ScoredClass
from clients.families.base.picture_input import PictureFamily, PictureKeys
from clients.images.boxes import (
    LAYOUTS,
    MOST_SHARE,
    NOT_THIS_HEAD,
    Array,
    Candidates,
    OutputLayout,
    as_points,
    not_this_head,
)
from clients.images.drawing import draw_objects
from clients.images.pictures import room
from clients.images.resizing import Letterbox
from clients.images.shapes import POLYGONS, RUN_LENGTHS, Spot, as_places, find_keypoints, find_masks
from clients.images.suppression import FoundObjects, find_objects
from clients.triton.server import Hints, Signature

SIDES = ("x1", "y1", "x2", "y2")
RunLengths = TypedDict("RunLengths", {"size": list[int], "counts": list[int]})
Box = TypedDict("Box", {"x1": float, "y1": float, "x2": float, "y2": float})
PIXEL = 1.0  # the error of a box's side in half precision
INSIDE_OUT = "the right side of a box is left of its left side, or its lower above"


@dataclass(frozen=True, kw_only=True)
class DetectionKeys(PictureKeys):
    """The keys of this family."""

    output_layout: str = key(one_of(*LAYOUTS), "what the numbers of a box mean")
    labels: str = labels_key()
    size: int | tuple[int, int] | None = key(
        SIZE, "of the model's rectangle; else that of its input", None
    )
    keypoints: tuple[int, int] | None = key(
        POINTS, "those of a pose, and the numbers of each, as Ultralytics' `kpt_shape`", None
    )
    rotated: bool = key(FLAG, "whether boxes have an angle behind the classes", default=False)
    extra_columns: int | None = key(
        COUNT, "other numbers behind a box's classes, which are ignored", None
    )
    normalised: bool = key(
        FLAG,
        "whether boxes are parts of the letterboxed picture's sides, not pixels",
        default=False,
    )
    agnostic_nms: bool = key(
        FLAG, "whether the better of two boxes is kept whatever their classes", default=False
    )
    priors: str = key(INSIDE, "of ssd: a file of NumPy, [boxes, 4], centre and size as parts", "")
    output: str = key(TENSOR, "the output with the boxes, where there are several", "")
    outputs: tuple[str, ...] = key(
        TENSORS, "those of a layout with several, in its order; else by their sizes", ()
    )


class FoundObject(ScoredClass):
    """An object, in pixels of the picture."""

    box: Box
    corners: NotRequired[list[Spot]]  # of a rotated box
    keypoints: NotRequired[list[Spot]]
    mask: NotRequired[list[list[tuple[float, float]]] | RunLengths]


class Detection(PictureFamily[DetectionKeys, DetectorPlan]):
    """Answers `[class_id, score, x1, x2, y1, y2, width, height]` per object.

    The best comes first. Coordinates are pixels of the picture that was sent, and width and height
    are those of that picture. Masks, keypoints and the corners of rotated boxes are in the format
    `objects` alone; the row of a rotated box is the upright one around it.
    """

    keys_type = DetectionKeys
    result_type = list[FoundObject | list[float]]
    compared_as = "objects"
    needs_labels = True
    parameters = {
        "confidence": Parameter(0.5, 0, 1, "objects with a lower score are left out"),
        "iou": Parameter(0.45, 0, 1, "of two boxes that overlap by more, the better one is kept"),
        "format": FORMAT,
        "masks": Parameter(
            POLYGONS,
            choices=(POLYGONS, RUN_LENGTHS),
            meaning="how masks are written, of models that have them, in the format objects",
        ),
    }

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        behind = [name for name in BEHIND if getattr(self.keys, name)]
        if behind and (len(behind) > 1 or self.layout.parts):
            beside = f"`{behind[0]}`" if behind[1:] else f'"{self.keys.output_layout}"'
            raise self.mistake(behind[-1], f"is there beside {beside}", "leave one of them out")
        if self.keys.extra_columns == 1:
            raise self.mistake("extra_columns", "is 1, as for an angle", "write `rotated = true`")

    @property
    def layout(self) -> OutputLayout:
        return LAYOUTS[self.keys.output_layout]

    @property
    def usual(self) -> Mapping[str, Any]:
        return self.layout.usual

    def fit(self, signature: Signature) -> DetectorPlan:
        return fit_detector(self, signature, self.read_input(signature), self.layout)

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        as_objects = self.request.draws or self.request.parameters["format"] == "objects"
        taken, size = plan.input, plan.head.size
        # Where each picture is in the model's rectangle.
        boxed = self.each(payloads, lambda payload: taken.fitted(self.picture(payload), size))
        inputs = taken.tensor([taken.scaled_planes(box.shades) for box in boxed])
        names = [one.name for one in plan.outputs]
        above = {}
        if self.layout.objectness is not None:
            above[names[0]] = self.layout.objectness, self.request.parameters["confidence"]
        if plan.prototypes and as_objects:
            names.append(plan.prototypes)
        answer = self.infer(inputs, outputs=names, hints=Hints(above=above))
        count = len(payloads)
        outputs = [plan.by_picture(name, answer[name], count, self.layout) for name in names]
        answers: list[Any] = []
        for *each, box in zip(*outputs, boxed, strict=True):
            found = self.found(each[: len(plan.outputs)], plan)
            places = self.places(found, box)
            scores = [round(min(score, 1.0), 4) for score in found.scores.tolist()]
            rows = zip(found.classes.tolist(), scores, places, strict=True)
            if not as_objects:
                sides = box.width, box.height
                answers.append([[k, s, x1, x2, y1, y2, *sides] for k, s, (x1, y1, x2, y2) in rows])
                continue
            objects = [
                self.named(kind, score, 4) | {"box": dict(zip(SIDES, at, strict=True))}
                for kind, score, at in rows
            ]
            shapes = self.shapes(found, places, box, plan, each)
            answers.append([one | more for one, more in zip(objects, shapes, strict=True)])
        return answers

    def places(self, found: FoundObjects, box: Letterbox) -> list[list[float]]:
        """Return the corners x1, y1, x2, y2 of objects in pixels of the picture."""
        corners = found.corners
        if (corners[:, 2:] < corners[:, :2] - PIXEL).any():
            raise not_this_head(INSIDE_OUT)
        corners[:, 2:] = np.maximum(corners[:, :2], corners[:, 2:])
        places: list[list[float]] = box.back(corners).round(2).tolist()
        return places

    def shapes(
        self,
        found: FoundObjects,
        places: list[list[float]],
        box: Letterbox,
        plan: DetectorPlan,
        outputs: Sequence[Array],
    ) -> list[dict[str, Any]]:
        """Return what each object has besides its box, in pixels of the picture."""
        if found.quads is not None:
            corners = as_places(box.back_points(found.quads).round(2))
            return [{"corners": one} for one in corners]
        if plan.points:
            return find_keypoints(found.extra, plan.points, box)
        if not plan.prototypes or len(outputs[-1]) != found.extra.shape[1]:
            return [{}] * len(places)
        form = POLYGONS if self.request.draws else self.request.parameters["masks"]
        masks = []
        for one in find_masks(found, outputs[-1], places, box, form):
            self.request.time_left()  # raises: thousands of masks take seconds
            masks.append(one)
        return masks

    def found(self, outputs: Sequence[Array], plan: DetectorPlan) -> FoundObjects:
        """Return the objects of one picture, best first, in pixels of the rectangle.

        Raises ModelFailed: a model with this layout cannot answer such boxes, scores or classes.
        """
        layout, settings, head = self.layout, self.request.parameters, plan.head
        if not plan.counted:
            count = outputs[0].shape[layout.axis]
            head = replace(head, extra=count_behind(self, layout, plan, count))
        boxes, rest, extra = layout.decode(outputs, settings["confidence"], head)
        boxes = self.in_pixels(boxes, plan)
        if not np.isfinite(extra).all():
            raise not_this_head("a number behind a box's classes is not finite")
        if plan.points and self.keys.normalised:
            sides = np.array([*head.size[::-1], 1][: plan.points], extra.dtype)
            extra = (as_points(extra, plan.points) * sides).reshape(extra.shape)
        if not layout.classes and (most := rest[:, 1].max(initial=0)) >= len(self.labels):
            raise not_this_head(
                f"a box is of the class {most:g}, but `labels` has {len(self.labels)} lines",
                f"give `labels` a line for each class, from that of class 0 on, or {NOT_THIS_HEAD}",
            )
        return find_objects(
            layout,
            Candidates(boxes, rest, extra),
            confidence=settings["confidence"],
            iou=settings["iou"],
            rotated=self.keys.rotated,
            agnostic=self.keys.agnostic_nms,
        )

    def in_pixels(self, boxes: Array, plan: DetectorPlan) -> Array:
        """Return boxes in pixels of the rectangle.

        Raises ModelFailed: they are not finite, or not in the unit that the file says.
        """
        if not boxes.size:
            return boxes
        if not np.isfinite(boxes).all():
            raise not_this_head("a box is not finite")
        sized = self.layout.classes or self.keys.rotated
        sides = boxes[:, 2:] if sized else boxes[:, 2:] - boxes[:, :2]
        # Unsure boxes may be inside out with any model; boxes that are answered must not be.
        if (sides.min(1) < -PIXEL).mean() > 0.5:
            raise not_this_head(INSIDE_OUT)
        shares = self.layout.shares or self.keys.normalised
        if (np.abs(boxes).max() <= MOST_SHARE) != shares:
            unit = ("parts of the picture's sides", "pixels")
            came, said = unit[::-1] if shares else unit
            fix = "change `normalised`, or the layout, in dispatch.toml: rtdetr has parts"
            raise not_this_head(f"the boxes are {came}, no {said}", fix)
        height, width = plan.head.size
        return boxes.astype(np.float32) * (width, height, width, height) if shares else boxes

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        with room.kept():
            return draw_objects(self.picture(payload), result, media_type, self.request.time_left)
