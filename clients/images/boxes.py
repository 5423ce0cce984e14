"""Reads a detector's output by its layout: boxes, scores and classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from clients.errors import ModelFailed

Array = npt.NDArray[np.float32]
Objects = tuple[npt.NDArray[np.intp], Array, Array]
"""Class ids [M], scores [M] and corners x1, y1, x2, y2 in pixels of the rectangle [M, 4]."""

MOST_CANDIDATES = 3000  # for non-maximum suppression: 3000 take 50 ms, all boxes 4 s
MOST_QUERIES = 1000  # boxes of a model that answers each object once; 300 is usual

ROUNDING = 0.004
"""How far a probability may be below 0 or above 1: one step of eight bits."""

MOST_SHARE = 2.0
"""The largest coordinate of boxes as parts of a picture's sides; in pixels they are larger."""


@dataclass(frozen=True)
class OutputLayout:
    """The meaning of the numbers in a detector's output."""

    box: str  # the numbers of a box, in words
    axis: int  # the axis of the numbers of a box
    before: int  # how many numbers come before the classes
    # Gets the output for one picture and the least score; returns four coordinates of each box that
    # may reach it [N, 4], and a probability per class [N, classes]; without classes in a row, a
    # score and the number of a class [N, 2]
    candidates: Callable[[Array, float], tuple[Array, Array]]
    objectness: int | None = None  # the column that must exceed the least score as well, if any
    classes: bool = True  # whether a box has a probability for each class
    # Whether the model answers each object once, with some hundreds of boxes, so that no non-
    # maximum suppression is needed
    queries: bool = False
    shares: bool = False  # whether boxes are parts of the picture's sides, not pixels
    # How pictures are prepared if dispatch.toml does not say it, by its keys
    usual: Mapping[str, Any] = field(default_factory=lambda: {"fit": "centre"})


def yolov5_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [N, 5 + classes]: box, objectness, and a conditional probability per class.

    As in YOLOv5's own `non_max_suppression` the objectness must exceed `confidence` as well.
    """
    keep_scores(output[:, 4])
    rows = output[output[:, 4] > confidence]
    classes = keep_scores(rows[:, 5:])
    if classes.size and classes.max() == 0:
        raise not_this_head(
            "none of the boxes that hold something has a class",
            'a model that gives corners, score and class wants `output_layout = "end2end"` in '
            "dispatch.toml",
        )
    return rows[:, :4], classes * rows[:, 4:5]


def yolov8_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [4 + classes, N]: box, and a probability per class. There is no objectness."""
    best = keep_scores(output[4:].max(0))
    rows = output[:, best > confidence].T
    return rows[:, :4], keep_scores(rows[:, 4:])


def rtdetr_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [N, 4 + classes], as RT-DETR has it: box, and a probability per class."""
    return yolov8_candidates(output.T, confidence)


def end2end_candidates(output: Array, confidence: float) -> tuple[Array, Array]:
    """Read [N, 6]: corners x1, y1, x2, y2, score, and class, a whole number from 0."""
    rows = output[keep_scores(output[:, 4]) > confidence]
    kinds = rows[:, 5]
    if (wrong := kinds[(kinds % 1 != 0) | (kinds < 0)]).size:
        raise not_this_head(f"a box is of the class {wrong[0]:g}, no whole number from 0")
    return rows[:, :4], rows[:, 4:6]


LAYOUTS: Mapping[str, OutputLayout] = {
    "end2end": OutputLayout(
        "x1, y1, x2, y2, score, class", 1, 6, end2end_candidates, classes=False, queries=True
    ),
    "yolov5": OutputLayout(
        "centre x, centre y, width, height, objectness, the classes",
        1,
        5,
        yolov5_candidates,
        objectness=4,
    ),
    "yolov8": OutputLayout(
        "centre x, centre y, width, height, the classes", 0, 4, yolov8_candidates
    ),
    "rtdetr": OutputLayout(
        "centre x, centre y, width, height as parts of the picture, the classes",
        1,
        4,
        rtdetr_candidates,
        queries=True,
        shares=True,
        usual={"fit": "stretch"},
    ),
}


def keep_scores(scores: Array) -> Array:
    """Return scores unchanged; raise ModelFailed where one is no probability."""
    if scores.size and not (scores.min() >= -ROUNDING and scores.max() <= 1 + ROUNDING):
        wrong = scores[~((scores >= -ROUNDING) & (scores <= 1 + ROUNDING))]
        raise not_this_head(f"the model gives a score of {wrong.ravel()[0]:g}, no probability")
    return scores


NOT_THIS_HEAD = (
    "`output_layout` in dispatch.toml is that of another model, the columns behind the classes are "
    "not said there (`extra_columns`), or the model was exported without its last sigmoid"
)


def not_this_head(what: str, hint: str = NOT_THIS_HEAD) -> ModelFailed:
    """Return the error for an output that does not match `output_layout`."""
    return ModelFailed(what, hint=hint)


def is_turned(layout: OutputLayout, sizes: Sequence[int], classes: int) -> bool:
    """Whether rows and columns are swapped, as in some exports of YOLOv8.

    Only thousands of boxes show it.
    """
    across, along = sizes
    return layout.axis == 0 and across > max(MOST_QUERIES, along, classes + layout.before)


def best_first(classes: npt.NDArray[np.intp], scores: Array, corners: Array) -> Objects:
    order = np.argsort(-scores, kind="stable")
    return classes[order], scores[order], corners[order]


def sure_objects(boxes: Array, probabilities: Array, confidence: float) -> Objects:
    """Return the boxes above `confidence` with their likeliest class; as for `best_objects`."""
    classes = probabilities.argmax(1)
    scores = probabilities[np.arange(len(boxes)), classes]
    sure = scores > confidence
    boxes, half = boxes[sure], boxes[sure, 2:] / 2
    corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return classes[sure], scores[sure], corners


def best_objects(boxes: Array, probabilities: Array, *, confidence: float, iou: float) -> Objects:
    """Return the objects above `confidence`, after non-maximum suppression by class.

    Args:
        boxes: [N, 4]: centre x, centre y, width, height in pixels of the rectangle.
        probabilities: [N, classes].
        confidence: least score, 0 to 1.
        iou: greatest overlap of two boxes of a class, 0 to 1.

    Returns:
        class ids [M], scores [M] and corners x1, y1, x2, y2 [M, 4], best first.

    """
    classes, scores, corners = sure_objects(boxes, probabilities, confidence)
    if len(scores) > MOST_CANDIDATES:
        best = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
        classes, scores, corners = classes[best], scores[best], corners[best]
    # OpenCV takes x, y, width, height, and returns the indices kept, best first within a class. It
    # separates classes by adding a multiple of the largest corner, so corners must not be below 0.
    lowest = corners.min(initial=0)
    moved = np.concatenate([corners[:, :2] - lowest, corners[:, 2:] - corners[:, :2]], axis=1)
    kept = np.asarray(
        cv2.dnn.NMSBoxesBatched(moved.tolist(), scores.tolist(), classes.tolist(), confidence, iou),
        np.intp,
    )
    return best_first(classes[kept], scores[kept], corners[kept])
