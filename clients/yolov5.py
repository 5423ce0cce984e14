"""YOLOv5: which objects are in the picture, and where?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from clients.base import FORMAT, Client, Environment, Parameter, Payload
from clients.drawing import Box, draw_boxes
from clients.pictures import EXAMPLE, Picture

SIDE = 640
MOST_CANDIDATES = 3000  # whose boxes are compared with each other: 3000 take 50 ms, all take 4 s
FILL = 114  # the grey around the letterboxed picture that YOLOv5 was trained with

# A request is answered in one thread of the web worker; the cores belong to the models.
cv2.setNumThreads(1)


class YoloV5(Client):
    """Answers `[class_id, score, x1, x2, y1, y2, width, height]` per object, best first.

    Coordinates are pixels of the picture that was sent, and width and height are that picture's.
    """

    modelname = "yolov5"
    example = {"img": EXAMPLE}
    parameters = {
        "confidence": Parameter(0.5, 0, 1, "objects with a lower score are left out"),
        "iou": Parameter(0.45, 0, 1, "of two boxes that overlap by more, the better one is kept"),
        "format": FORMAT,
    }
    media = {"picture": "img"}

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.labels = (self.folder / "labels.txt").read_text().splitlines()

    def inference(self, payload: Payload) -> list[Any]:
        return self.inference_batch([payload])[0]

    def inference_batch(self, payloads: Sequence[Payload]) -> list[list[Any]]:
        boxed = self.each(payloads, lambda payload: Letterbox.around(self.picture(payload)))
        answer = self.infer({"images": np.stack([box.pixels for box in boxed])})["output"]
        return [self.objects(*pair) for pair in zip(answer, boxed, strict=True)]

    def objects(self, rows: npt.NDArray[np.float32], box: Letterbox) -> list[Any]:
        """Return the answer's rows for one picture; `rows` is [25200, 85]."""
        settings = self.request.parameters
        classes, scores, corners = best_objects(rows, settings["confidence"], settings["iou"])
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
        return draw_boxes(self.picture(payload), boxes, media_type)


def as_object(box: Box) -> dict[str, Any]:
    """Return an object with named fields; the box's corners are pixels of the picture."""
    corners = {"x1": box.x1, "y1": box.y1, "x2": box.x2, "y2": box.y2}
    return {"label": box.label, "index": box.index, "score": box.score, "box": corners}


def without_box(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "box"}


@dataclass(frozen=True)
class Letterbox:
    """A picture inside the model's square, and the way back to the picture's own pixels.

    Args:
        pixels: float32 [3, 640, 640], RGB, 0 to 1.
        width: of the picture, in pixels.
        height: of the picture, in pixels.
        scale: pixels of the square per pixel of the picture.
        left: where the picture begins in the square, in pixels of the square.
        top: likewise.

    """

    pixels: npt.NDArray[np.float32]
    width: int
    height: int
    scale: float
    left: int
    top: int

    @classmethod
    def around(cls, picture: Picture) -> Letterbox:
        """Scale a picture, uint8 [height, width, 3], to fit the square and centre it there."""
        height, width = picture.shape[:2]
        scale = min(SIDE / height, SIDE / width)
        # A line of pixels must not vanish.
        inner_width, inner_height = max(1, round(width * scale)), max(1, round(height * scale))
        left, top = (SIDE - inner_width) // 2, (SIDE - inner_height) // 2
        square = np.full((SIDE, SIDE, 3), FILL, np.uint8)
        square[top : top + inner_height, left : left + inner_width] = cv2.resize(
            picture, (inner_width, inner_height), interpolation=cv2.INTER_LINEAR
        )
        pixels = square.transpose(2, 0, 1) / np.float32(255)
        return cls(pixels, width, height, scale, left, top)

    def back(self, corners: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return corners in pixels of the picture, clipped to it.

        Args:
            corners: [N, 4], x1, y1, x2, y2 in pixels of the square.

        """
        moved = corners.astype(np.float64) - [self.left, self.top, self.left, self.top]
        size = [self.width, self.height, self.width, self.height]
        return np.clip(moved / self.scale, 0, size)


def best_objects(
    rows: npt.NDArray[np.float32], confidence: float, iou: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Keep the objects that are sure enough, and of those that overlap the best of each class.

    As YOLOv5's own `non_max_suppression`: the objectness and the score, which is objectness times
    class probability, must both be above `confidence`; suppression is per class.

    Args:
        rows: [N, 85]: centre x, centre y, width, height in pixels of the square, objectness, and
            a probability per class.
        confidence: least score, 0 to 1.
        iou: greatest overlap of two boxes of a class, 0 to 1.

    Returns:
        class ids [M], scores [M] and corners x1, y1, x2, y2 [M, 4], best first.

    """
    rows = rows[rows[:, 4] > confidence]
    probabilities = rows[:, 5:] * rows[:, 4:5]
    classes = probabilities.argmax(1)
    scores = probabilities[np.arange(len(rows)), classes]
    sure = scores > confidence
    rows, classes, scores = rows[sure], classes[sure], scores[sure]
    if len(scores) > MOST_CANDIDATES:
        best = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
        rows, classes, scores = rows[best], classes[best], scores[best]
    half = rows[:, 2:4] / 2
    corners = np.concatenate([rows[:, :2] - half, rows[:, :2] + half], axis=1)
    # OpenCV takes x, y, width, height and answers the kept ones, best first within a class.
    # It keeps classes apart by moving them by the largest corner, which takes corners from 0 on.
    lowest = corners.min(initial=0)
    boxes = np.concatenate([corners[:, :2] - lowest, rows[:, 2:4]], axis=1)
    kept = np.asarray(
        cv2.dnn.NMSBoxesBatched(boxes.tolist(), scores.tolist(), classes.tolist(), confidence, iou),
        np.intp,
    )
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    return classes[kept], scores[kept], corners[kept]
