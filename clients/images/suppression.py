"""Chooses a picture's objects among the boxes of a detector: non-maximum suppression."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from clients.images.boxes import Array, Candidates, OutputLayout

Places = npt.NDArray[np.intp]

MOST_CANDIDATES = 3000  # for non-maximum suppression: 3000 take 50 ms, all boxes 4 s
MOST_ROTATED = 1000  # of rotated boxes: they take 90 ms
EPS = 1e-7  # as in Ultralytics' `probiou`


class FoundObjects(NamedTuple):
    """The objects in a picture, best first."""

    classes: Places  # [M]
    scores: Array  # [M]
    corners: Array  # x1, y1, x2, y2 in pixels of the rectangle [M, 4]
    extra: Array  # what is behind the classes of a box [M, any]
    quads: Array | None = None  # the four corners of rotated boxes [M, 4, 2]


def find_objects(
    layout: OutputLayout,
    rows: Candidates,
    *,
    confidence: float,
    iou: float,
    rotated: bool = False,
    agnostic: bool = False,
) -> FoundObjects:
    """Return the objects above `confidence`, after non-maximum suppression by class.

    There is none for layouts that answer each object once.

    Args:
        layout: of the rows.
        rows: in pixels of the rectangle; where boxes are `rotated` they are centre x, centre y,
            width, height in any layout, and `extra` begins with an angle.
        confidence: least score, 0 to 1.
        iou: greatest overlap of two boxes of a class, 0 to 1.
        rotated: whether boxes have an angle, in radians.
        agnostic: whether boxes of other classes are suppressed, too.

    """
    boxes, rest, extra = rows
    if layout.classes:
        classes = rest.argmax(1)
        scores = rest[np.arange(len(boxes)), classes]
    else:
        scores, classes = rest[:, 0], rest[:, 1].astype(np.intp)
    best = np.flatnonzero(scores > confidence)
    best = best[np.argsort(-scores[best], kind="stable")]
    best = best[: MOST_ROTATED if rotated else MOST_CANDIDATES]
    boxes, classes, scores, extra = boxes[best], classes[best], scores[best], extra[best]
    quads = corners_of(boxes, extra[:, 0]) if rotated else None
    if quads is not None:
        corners = np.concatenate([quads.min(1), quads.max(1)], axis=1)
    elif layout.classes:
        half = boxes[:, 2:] / 2
        corners = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    else:
        corners = boxes
    if layout.queries:
        return FoundObjects(classes, scores, corners, extra, quads)
    kinds = np.zeros_like(classes) if agnostic else classes
    if quads is not None:
        kept = keep_rotated(boxes, extra[:, 0], kinds, iou)
        return FoundObjects(classes[kept], scores[kept], corners[kept], extra[kept], quads[kept])
    kept = keep_upright(corners, kinds, scores, confidence, iou)
    return FoundObjects(classes[kept], scores[kept], corners[kept], extra[kept])


def keep_upright(
    corners: Array, classes: Places, scores: Array, confidence: float, iou: float
) -> Places:
    """Return the numbers of the boxes, best first, that no better one of their class overlaps."""
    # OpenCV takes x, y, width, height, and returns the indices kept, best first within a class. It
    # separates classes by adding a multiple of the largest corner, so corners must not be below 0.
    lowest = corners.min(initial=0)
    moved = np.concatenate([corners[:, :2] - lowest, corners[:, 2:] - corners[:, :2]], axis=1)
    kept = cv2.dnn.NMSBoxesBatched(
        moved.tolist(), scores.tolist(), classes.tolist(), confidence, iou
    )
    return np.sort(np.asarray(kept, np.intp))


def corners_of(boxes: Array, angles: Array) -> Array:
    """Return the corners [N, 4, 2] of boxes [N, 4], centre and size, turned by angles in radians.

    In Ultralytics' order (`xywhr2xyxyxyxy`): right below, right above, left above, left below,
    turned clockwise in a picture, whose y grows downwards.
    """
    cos, sin = np.cos(angles), np.sin(angles)
    across = np.stack([cos, sin], 1) * boxes[:, 2:3] / 2
    along = np.stack([-sin, cos], 1) * boxes[:, 3:4] / 2
    ways = np.stack([across + along, across - along, -across - along, along - across], 1)
    corners: Array = boxes[:, None, :2] + ways
    return corners


def keep_rotated(boxes: Array, angles: Array, classes: Places, iou: float) -> Places:
    """Return the numbers of the boxes, best first, that no better one of their class overlaps.

    As Ultralytics: a box that is not kept suppresses others too (`fast_nms`), and the overlap is
    that of boxes as Gaussians (`probiou`), 1 less their Hellinger distance (Llerena et al.,
    "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union", arXiv:2106.06072).
    """
    wide, high = (boxes[:, 2:].astype(np.float64) ** 2 / 12).T
    cos, sin = np.cos(angles), np.sin(angles)
    xx, yy = wide * cos**2 + high * sin**2, wide * sin**2 + high * cos**2
    # Of each box, and then of one with all behind it: centre, and the parts of its covariance.
    each = np.stack([*boxes[:, :2].T, xx, yy, (wide - high) * cos * sin])
    areas = np.maximum(xx * yy - each[4] ** 2, 0)
    lost = np.zeros(len(boxes), np.bool_)
    for at in range(len(boxes)):
        behind = slice(at + 1, None)
        x, y = each[:2, behind] - each[:2, at, None]
        a, b, c = each[2:, behind] + each[2:, at, None]
        whole = a * b - c**2
        apart = (a * y**2 + b * x**2 - 2 * c * x * y) / (4 * (whole + EPS))
        spread = np.log(whole / (4 * np.sqrt(areas[behind] * areas[at]) + EPS) + EPS) / 2
        overlap = 1 - np.sqrt(1 - np.exp(-np.clip(apart + spread, EPS, 100)) + EPS)
        lost[behind] |= (overlap >= iou) & (overlap > 0) & (classes[behind] == classes[at])
    return np.flatnonzero(~lost)
