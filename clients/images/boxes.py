"""Reads a detector's outputs by their layout: boxes, scores and classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from clients.errors import ModelFailed

Array = npt.NDArray[np.float32]

MOST_QUERIES = 1000  # boxes of a model that answers each object once; 300 is usual

ROUNDING = 0.004
"""How far a probability may be below 0 or above 1: one step of eight bits."""

MOST_SHARE = 2.0
"""The largest coordinate of boxes as parts of a picture's sides; in pixels they are larger."""

VARIANCES = 0.1, 0.2  # of SSD, by which centres and sizes were divided in training

Grids = Mapping[int, Sequence[int]]
"""The sides of the square priors in each cell of several grids, by the cells' side, in pixels."""

CELLS: Grids = {8: (8,), 16: (16,), 32: (32,)}
FACES: Grids = {8: (16, 32), 16: (64, 128), 32: (256, 512)}  # RetinaFace's `steps` and `min_sizes`


class Candidates(NamedTuple):
    """The boxes of a picture that may reach the least score."""

    boxes: Array  # [N, 4]: centre x, centre y, width, height; of `end2end` x1, y1, x2, y2
    # A probability per class [N, classes]; without classes in a row, a score and a class [N, 2]
    rest: Array
    # What a box has behind its classes [N, any]: coefficients of a mask, keypoints, or an angle
    extra: Array


@dataclass(frozen=True)
class Head:
    """What of a model, besides its layout, its outputs are read by."""

    size: tuple[int, int] = (0, 0)  # height and width of the rectangle with the picture, in pixels
    extra: int = 0  # the count of numbers behind the classes of a box
    # [boxes, 4], centre and size in pixels of the rectangle: what boxes are relative to
    priors: Array = field(default_factory=lambda: np.empty((0, 4), np.float32))


Decode = Callable[[Sequence[Array], float, Head], Candidates]


@dataclass(frozen=True)
class OutputLayout:
    """The meaning of the numbers in a detector's output."""

    box: str  # the numbers of a box, in words
    axis: int  # the axis of the numbers of a box
    before: int  # how many numbers come before the classes
    decode: Decode  # gets the outputs for one picture and the least score
    objectness: int | None = None  # the column that must exceed the least score as well, if any
    classes: bool = True  # whether a box has a probability for each class
    # Whether the model answers each object once, with some hundreds of boxes, so that no non-
    # maximum suppression is needed
    queries: bool = False
    shares: bool = False  # whether boxes are parts of the picture's sides, not pixels
    # The counts of numbers of a place in each output, for a count of classes, where there are
    # several; there may be one more, with the coordinates of keypoints
    parts: Callable[[int], tuple[int, ...]] | None = None
    # What boxes are relative to: one of these, by the count of boxes; and a prior's place in a cell
    grids: Sequence[Grids] = ()
    prior_at: float = 0.0
    # How pictures are prepared if dispatch.toml does not say it, by its keys
    usual: Mapping[str, Any] = field(default_factory=lambda: {"fit": "centre"})


def yolov5_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [N, 5 + classes]: box, objectness, and a conditional probability per class.

    As in YOLOv5's own `non_max_suppression` the objectness must exceed `confidence` as well.
    """
    (output,) = outputs
    keep_scores(output[:, 4])
    rows = output[output[:, 4] > confidence]
    end = output.shape[1] - head.extra
    classes = keep_scores(rows[:, 5:end])
    if classes.size and classes.max() == 0:
        raise not_this_head(
            "none of the boxes that hold something has a class",
            'a model that gives corners, score and class wants `output_layout = "end2end"` in '
            "dispatch.toml",
        )
    return Candidates(rows[:, :4], classes * rows[:, 4:5], rows[:, end:])


def yolox_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [N, 5 + classes] as `yolov5_rows`, with boxes in the cells of their grids.

    They are priors: `demo_postprocess` of YOLOX adds a centre to its cell, in cells, and takes the
    exponential of a size.
    """
    (output,) = outputs
    found = yolov5_rows(outputs, confidence, head)
    cells = priors_of(output, head)[output[:, 4] > confidence]
    return found._replace(boxes=from_priors(found.boxes, cells, (1, 1)))


def rtdetr_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [N, 4 + classes], as RT-DETR has it: box, and a probability per class."""
    (output,) = outputs
    end = output.shape[1] - head.extra
    rows = output[keep_scores(output[:, 4:end].max(1)) > confidence]
    return Candidates(rows[:, :4], keep_scores(rows[:, 4:end]), rows[:, end:])


def yolov8_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [4 + classes, N]: box, and a probability per class. There is no objectness."""
    return rtdetr_rows([outputs[0].T], confidence, head)


def end2end_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [N, 6]: corners x1, y1, x2, y2, score, and class, a whole number from 0."""
    (output,) = outputs
    rows = output[keep_scores(output[:, 4]) > confidence]
    kinds = rows[:, 5]
    if (wrong := kinds[(kinds % 1 != 0) | (kinds < 0)]).size:
        raise not_this_head(f"a box is of the class {wrong[0]:g}, no whole number from 0")
    return Candidates(rows[:, :4], rows[:, 4:6], rows[:, output.shape[1] - head.extra :])


def ssd_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [N, 4], [N, 1 + classes] and maybe [N, 2 × keypoints], which are relative to priors.

    As `decode` and `decode_landm` of RetinaFace. The first class is the background.
    """
    places, classes, *points = outputs
    probabilities = keep_scores(classes[:, 1:])
    kept = probabilities.max(1) > confidence
    priors = priors_of(places, head)[kept]
    extra = priors[:, :0]
    if points:
        marks = as_points(extra := points[0][kept], 2) * VARIANCES[0]
        extra = (marks * priors[:, None, 2:] + priors[:, None, :2]).reshape(extra.shape)
    return Candidates(from_priors(places[kept], priors, VARIANCES), probabilities[kept], extra)


def centerface_rows(outputs: Sequence[Array], confidence: float, head: Head) -> Candidates:
    """Read [classes, H, W], [2, H, W], [2, H, W] and maybe [2 × keypoints, H, W] of CenterFace.

    They are scores, the logarithms of heights and widths in cells, the offsets of centres, and
    keypoints as parts of a box from its corner, each y before x.
    """
    heat, sizes, offsets, *points = outputs
    y, x = np.nonzero(keep_scores(heat).max(0) > confidence)
    cell = np.array(head.size, np.float32) / heat.shape[1:]  # 4 pixels
    side = np.exp(sizes[:, y, x]).T * cell
    # Corners are moved into the picture before keypoints are placed, as by CenterFace's own code.
    corner = (np.stack([y, x], 1) + offsets[:, y, x].T + 0.5) * cell - side / 2
    corner = np.clip(corner, 0, head.size)
    boxes = np.concatenate([corner + side / 2, side], 1)[:, [1, 0, 3, 2]]
    extra = corner[:, :0]
    if points:
        marks = as_points(extra := points[0][:, y, x].T, 2) * side[:, None] + corner[:, None]
        extra = marks[..., ::-1].reshape(extra.shape)
    return Candidates(boxes, heat[:, y, x].T, extra)


def as_points(rows: Array, numbers: int) -> Array:
    """Return rows [N, …] as points [N, …, numbers]; N may be 0."""
    return rows.reshape(len(rows), rows.shape[1] // numbers, numbers)


def from_priors(boxes: Array, priors: Array, variances: tuple[float, float]) -> Array:
    """Return boxes [N, 4], centre and size in pixels, of what is relative to their priors."""
    place, spread = variances
    centres = priors[:, :2] + boxes[:, :2] * place * priors[:, 2:]
    return np.concatenate([centres, priors[:, 2:] * np.exp(boxes[:, 2:] * spread)], 1)


def priors_of(output: Array, head: Head) -> Array:
    """Return the priors of a head; raise ModelFailed unless there is one for each box."""
    if len(head.priors) != len(output):
        raise not_this_head(
            f"the model gives {len(output)} boxes, but by `output_layout` there are "
            f"{len(head.priors)}"
        )
    return head.priors


def grid_priors(layout: OutputLayout, size: tuple[int, int], count: int) -> Array:
    """Return the priors of a layout, row by row: centre x, centre y, width, height in pixels.

    Those of the grids that have `count` of them, else of the first.
    """
    found = []
    for grids in layout.grids:
        parts = []
        for stride, sides in grids.items():
            high, wide = (math.ceil(one / stride) for one in size)
            y, x, side = np.meshgrid(np.arange(high), np.arange(wide), sides, indexing="ij")
            centre = [(one + layout.prior_at) * stride for one in (x, y)]
            parts.append(np.stack([*centre, side, side], -1).reshape(-1, 4))
        found.append(np.concatenate(parts).astype(np.float32))
    return next((one for one in found if len(one) == count), found[0])


YOLOV5 = OutputLayout(
    "centre x, centre y, width, height, objectness, the classes",
    1,
    5,
    yolov5_rows,
    objectness=4,
)
SSD = OutputLayout(
    "centre x, centre y, width, height relative to a prior",
    1,
    4,
    ssd_rows,
    parts=lambda classes: (4, 1 + classes),
)
LAYOUTS: Mapping[str, OutputLayout] = {
    "end2end": OutputLayout(
        "x1, y1, x2, y2, score, class", 1, 6, end2end_rows, classes=False, queries=True
    ),
    "yolov5": YOLOV5,
    "yolov8": OutputLayout("centre x, centre y, width, height, the classes", 0, 4, yolov8_rows),
    # Trained on pictures as OpenCV reads them.
    "yolox": replace(
        YOLOV5,
        box="centre x, centre y, width, height in its cell, objectness, the classes",
        decode=yolox_rows,
        objectness=None,  # the server must not leave boxes out: their numbers are their cells
        grids=(CELLS, {**CELLS, 64: (64,)}),
        usual={"fit": "top-left", "pixels": "0-255", "channels": "BGR"},
    ),
    "rtdetr": OutputLayout(
        "centre x, centre y, width, height as parts of the picture, the classes",
        1,
        4,
        rtdetr_rows,
        queries=True,
        shares=True,
        usual={"fit": "stretch"},
    ),
    "ssd": SSD,
    "retinaface": replace(
        SSD,
        grids=(FACES,),
        prior_at=0.5,
        # As in its detect.py.
        usual={
            "fit": "top-left",
            "pixels": "0-255",
            "channels": "BGR",
            "mean": (104.0, 117.0, 123.0),
        },
    ),
    "centerface": OutputLayout(
        "a cell of several maps",
        0,
        4,
        centerface_rows,
        parts=lambda classes: (classes, 2, 2),
        usual={"fit": "stretch", "pixels": "0-255"},
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
