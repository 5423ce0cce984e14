"""Which objects are in the picture, and where? For models with YOLO's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from clients.base import FORMAT, Environment, Parameter, Payload
from clients.dispatch_toml import INSIDE, SIZE, TENSOR, Keys, key, one_of
from clients.drawing import Box, draw_boxes
from clients.family import Family, shown
from clients.model_server import Signature
from clients.picture_input import PictureInput
from clients.pictures import EXAMPLE, Picture, planes

MOST_CANDIDATES = 3000  # whose boxes are compared with each other: 3000 take 50 ms, all take 4 s
FILL = 114  # the grey around the letterboxed picture that YOLO was trained with

# A request is answered in one thread of the web worker; the cores belong to the models.
cv2.setNumThreads(1)

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OutputLayout:
    """Where things stand in a detector's output.

    Args:
        axis: along which a box's numbers stand.
        before: how many of them stand before the classes.
        candidates: takes the output for one picture and the least score; returns centre x,
            centre y, width and height in pixels [N, 4] and a probability per class [N, classes]
            of those boxes that may be sure enough.
        objectness: the number of a box that has to be more than the least score as well, if any.

    """

    axis: int
    before: int
    candidates: Callable[[Array, float], tuple[Array, Array]]
    objectness: int | None = None


def yolov5_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [N, 5 + classes]: box, objectness, and a probability per class if there is an object.

    As in YOLOv5's own `non_max_suppression` the objectness must be above `confidence` as well.
    """
    rows = output[output[:, 4] > confidence]
    return rows[:, :4], rows[:, 5:] * rows[:, 4:5]


def yolov8_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [4 + classes, N]: box, and a probability per class. There is no objectness."""
    rows = output[:, output[4:].max(0) > confidence].T
    return rows[:, :4], rows[:, 4:]


LAYOUTS: Mapping[str, OutputLayout] = {
    "yolov5": OutputLayout(1, 5, yolov5_candidates, objectness=4),
    "yolov8": OutputLayout(0, 4, yolov8_candidates),
}


@dataclass(frozen=True, kw_only=True)
class DetectionKeys(Keys):
    """The keys of this family."""

    output_layout: str = key(one_of(*LAYOUTS), "what the rows of the output are")
    labels: str = key(INSIDE, "the file with a class name per line", "labels.txt")
    size: int | tuple[int, int] | None = key(
        SIZE, "of the letterboxed picture; nothing means what the model takes", None
    )
    input: str = key(TENSOR, "the input, where there are several", "")
    output: str = key(TENSOR, "the output with the boxes, where there are several", "")


@dataclass(frozen=True)
class Plan:
    """What a model's tensors mean for its pictures.

    Args:
        input: how it takes them.
        size: height and width of the letterboxed picture, in pixels.
        output: the tensor with the boxes.

    """

    input: PictureInput
    size: tuple[int, int]
    output: str


class Detection(Family[DetectionKeys, Plan]):
    """Answers `[class_id, score, x1, x2, y1, y2, width, height]` per object, best first.

    Coordinates are pixels of the picture that was sent, and width and height are that picture's.
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
        self.labels = self.lines("labels")
        self.layout = LAYOUTS[self.keys.output_layout]

    def fit(self, signature: Signature) -> Plan:
        taken = PictureInput.of(self, signature)
        output = self.tensor(signature.outputs, "output")
        sizes = taken.rest_of(output)
        if len(sizes) != 2:
            raise self.misfit(f"{shown(output)} is no table of boxes")
        classes = sizes[self.layout.axis] - self.layout.before
        for name, other in LAYOUTS.items():
            if sizes[other.axis] - other.before == len(self.labels) != classes:
                raise self.mistake(
                    "output_layout",
                    f'is "{self.keys.output_layout}", but `labels` has {len(self.labels)} lines '
                    f"and it is {shown(output)}",
                    f'write "{name}"',
                )
        if sizes[self.layout.axis] != -1:
            self.count_labels(self.labels, classes, f"{shown(output)} in this layout")
        return Plan(taken, taken.size(self, "size"), output.name)

    def inference_batch(self, payloads: Sequence[Payload]) -> list[Any]:
        plan = self.fitted()
        boxed = self.each(
            payloads, lambda payload: Letterbox.around(self.picture(payload), plan.size)
        )
        pixels = [box.pixels for box in boxed]
        if plan.input.dtype == np.uint8:  # its whole numbers are 0 to 255, not parts of 1
            pixels = [(one * 255).round() for one in pixels]
        above = {}
        if self.layout.objectness is not None:
            above[plan.output] = self.layout.objectness, self.request.parameters["confidence"]
        inputs = plan.input.tensor(pixels)
        answer = self.infer(inputs, outputs=[plan.output], above=above)[plan.output]
        tables = answer.reshape(len(payloads), *answer.shape[-2:])
        return [self.objects(*pair) for pair in zip(tables, boxed, strict=True)]

    def objects(self, output: Array, box: Letterbox) -> list[Any]:
        """Return the answer's rows for one picture; `output` is as the layout has it."""
        settings = self.request.parameters
        candidates = self.layout.candidates(output, settings["confidence"])
        self.count_labels(self.labels, candidates[1].shape[1], "the output")
        classes, scores, corners = best_objects(
            *candidates, confidence=settings["confidence"], iou=settings["iou"]
        )
        found = [
            Box(x1, y1, x2, y2, self.labels[kind], round(float(score), 4), int(kind))
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

    def draw(self, payload: Payload, result: Any, media_type: str) -> bytes:
        if self.request.parameters["format"] == "objects":
            boxes = [Box(**one["box"], **without_box(one)) for one in result]
        else:
            boxes = [
                Box(x1, y1, x2, y2, self.labels[kind], score, kind)
                for kind, score, x1, x2, y1, y2, _, _ in result
            ]
        return draw_boxes(self.picture(payload), boxes, media_type, self.request.time_left)


def as_object(box: Box) -> dict[str, Any]:
    """Return an object with named fields; the box's corners are pixels of the picture."""
    corners = {"x1": box.x1, "y1": box.y1, "x2": box.x2, "y2": box.y2}
    return {"label": box.label, "index": box.index, "score": box.score, "box": corners}


def without_box(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "box"}


@dataclass(frozen=True)
class Letterbox:
    """A picture inside the model's rectangle, and the way back to the picture's own pixels.

    Args:
        pixels: float32 [3, height, width] of the rectangle, RGB, 0 to 1.
        width: of the picture, in pixels.
        height: of the picture, in pixels.
        scale: pixels of the rectangle per pixel of the picture.
        left: where the picture begins in the rectangle, in pixels of the rectangle.
        top: likewise.

    """

    pixels: Array
    width: int
    height: int
    scale: float
    left: int
    top: int

    @classmethod
    def around(cls, picture: Picture, size: tuple[int, int] = (640, 640)) -> Letterbox:
        """Scale a picture to fit a rectangle and centre it there.

        Args:
            picture: uint8 [height, width, 3].
            size: height and width of the rectangle, in pixels.

        """
        height, width = picture.shape[:2]
        scale = min(size[0] / height, size[1] / width)
        # A line of pixels must not vanish.
        inner_width, inner_height = max(1, round(width * scale)), max(1, round(height * scale))
        left, top = (size[1] - inner_width) // 2, (size[0] - inner_height) // 2
        whole = np.full((*size, 3), FILL, np.uint8)
        whole[top : top + inner_height, left : left + inner_width] = cv2.resize(
            picture, (inner_width, inner_height), interpolation=cv2.INTER_LINEAR
        )
        pixels = planes(whole) / np.float32(255)
        return cls(pixels, width, height, scale, left, top)

    def back(self, corners: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return corners in pixels of the picture, clipped to it.

        Args:
            corners: [N, 4], x1, y1, x2, y2 in pixels of the rectangle.

        """
        moved = corners.astype(np.float64) - [self.left, self.top, self.left, self.top]
        size = [self.width, self.height, self.width, self.height]
        return np.clip(moved / self.scale, 0, size)


def best_objects(
    boxes: Array, probabilities: Array, *, confidence: float, iou: float
) -> tuple[npt.NDArray[np.intp], Array, Array]:
    """Keep the objects that are sure enough, and of those that overlap the best of each class.

    Args:
        boxes: [N, 4]: centre x, centre y, width, height in pixels of the rectangle.
        probabilities: [N, classes].
        confidence: least score, 0 to 1.
        iou: greatest overlap of two boxes of a class, 0 to 1.

    Returns:
        class ids [M], scores [M] and corners x1, y1, x2, y2 [M, 4], best first.

    """
    classes = probabilities.argmax(1)
    scores = probabilities[np.arange(len(boxes)), classes]
    sure = scores > confidence
    boxes, classes, scores = boxes[sure], classes[sure], scores[sure]
    if len(scores) > MOST_CANDIDATES:
        best = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
        boxes, classes, scores = boxes[best], classes[best], scores[best]
    half = boxes[:, 2:] / 2
    corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    # OpenCV takes x, y, width, height and answers the kept ones, best first within a class.
    # It keeps classes apart by moving them by the largest corner, which takes corners from 0 on.
    lowest = corners.min(initial=0)
    moved = np.concatenate([corners[:, :2] - lowest, boxes[:, 2:]], axis=1)
    kept = np.asarray(
        cv2.dnn.NMSBoxesBatched(moved.tolist(), scores.tolist(), classes.tolist(), confidence, iou),
        np.intp,
    )
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    return classes[kept], scores[kept], corners[kept]
