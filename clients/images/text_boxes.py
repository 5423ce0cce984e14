"""Lines of text: where a detector sees them in a picture, and their cut-outs.

The detector is one of differentiable binarization (DB, https://arxiv.org/abs/1911.08947), which
answers for each pixel how likely it is inside a text, shrunk. Steps and limits are PaddleOCR's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from clients.images.pictures import Picture

Array = npt.NDArray[Any]

INSIDE = 0.3  # from this likelihood on a pixel is inside a text
MOST_TEXTS = 1000  # outlines that are looked at
LEAST_SIDE = 3  # pixels of a text's shorter side: of the heat map before it grows, of the picture
GROWN = 2  # pixels that it has to grow by
ARC = 0.25  # pixels by which a corner made of straight lines may leave its arc: Clipper's default
SAME_LINE = 10  # pixels between the upper edges of two boxes that are read from left to right
UPRIGHT = 1.5  # times as high as wide: such a cut-out is a line of text that was turned


def text_boxes(heat: Array, size: tuple[int, int], sure: float, grow: float) -> list[Array]:
    """Return the corners of each text in reading order, in whole pixels of the picture.

    Args:
        heat: [height, width], float32, of the picture as the detector took it.
        size: height and width of the picture.
        sure: the least mean of the heat inside a box.
        grow: times a box's area by its perimeter: by so many pixels its edges move outwards.

    Returns:
        float32 [4, 2], x and y: top left, top right, bottom right, bottom left.

    """
    mask = cv2.dilate((heat > INSIDE).astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    scale = np.divide(size[::-1], heat.shape[::-1])
    found = []
    for box in grown_boxes(outlines[:MOST_TEXTS], heat, sure, grow):
        # Halves are rounded to the even number, as NumPy does.
        inside = np.round(box * scale).clip(0, (size[1] - 1, size[0] - 1))
        corners = in_order(inside.astype(np.float32))
        sides = np.linalg.norm(corners[[1, 3]] - corners[0], axis=1)
        if int(sides.min()) > LEAST_SIDE:
            found.append(corners)
    return in_reading_order(found)


def grown_boxes(
    outlines: Sequence[Array], heat: Array, sure: float, grow: float
) -> Iterator[Array]:
    """Yield the boxes around the outlines that are sure texts, in pixels of the heat."""
    for outline in outlines:
        box, side = box_around(outline)
        if side < LEAST_SIDE or mean_inside(heat, box) < sure:
            continue
        box, side = box_around(grown(box, grow))
        if side >= LEAST_SIDE + GROWN:
            yield box


def box_around(points: Array) -> tuple[Array, float]:
    """Return the corners of the smallest rectangle around points, and its shorter side."""
    rectangle = cv2.minAreaRect(points)
    return in_order(cv2.boxPoints(rectangle)), min(rectangle[1])


def in_order(corners: Array) -> Array:
    """Return four corners from the top left on, clockwise."""
    left, right = np.split(corners[np.argsort(corners[:, 0], kind="stable")], 2)
    top_left, bottom_left = left[np.argsort(left[:, 1], kind="stable")]
    top_right, bottom_right = right[np.argsort(right[:, 1], kind="stable")]
    return np.stack([top_left, top_right, bottom_right, bottom_left])


def mean_inside(heat: Array, box: Array) -> float:
    most = np.subtract(heat.shape[::-1], 1)
    low = np.floor(box.min(0)).astype(int).clip(0, most)
    high = np.ceil(box.max(0)).astype(int).clip(0, most)
    mask = np.zeros((high - low + 1)[::-1], np.uint8)
    cv2.fillPoly(mask, [(box - low).astype(np.int32)], (1,))
    return cv2.mean(heat[low[1] : high[1] + 1, low[0] : high[0] + 1], mask)[0]


def grown(box: Array, ratio: float) -> Array:
    """Return the outline of a box whose edges moved outwards, in whole pixels.

    It is what Clipper's offset with round joins makes of the box in whole pixels, as PaddleOCR
    calls it; https://www.angusj.com/delphi/clipper.php describes it.
    """
    after = np.roll(box, -1, 0).astype(np.float64)
    area = abs((box[:, 0] * after[:, 1] - box[:, 1] * after[:, 0]).sum()) / 2
    by = area * ratio / np.linalg.norm(after - box, axis=1).sum()
    whole = np.trunc(box).astype(np.float64)
    edges = np.roll(whole, -1, 0) - whole
    angles = np.arctan2(-edges[:, 0], edges[:, 1])  # of the edges' normals
    # From one point of an arc to the next, at least two pixels away
    turn = max(2 * math.acos(1 - min(ARC, by / 4) / by), 2 / by)
    found = []
    for corner, first, last in zip(whole, np.roll(angles, 1), angles, strict=True):
        arc = (last - first) % (2 * math.pi)
        steps = np.append(first + turn * np.arange(max(1, round(arc / turn))), last)
        found.append(corner + by * np.stack([np.cos(steps), np.sin(steps)], 1))
    moved = np.concatenate(found)
    points: npt.NDArray[np.int32] = np.trunc(moved + np.copysign(0.5, moved)).astype(np.int32)
    return points


def in_reading_order(boxes: Sequence[Array]) -> list[Array]:
    """Return boxes from top to bottom, those of about the same height from left to right."""
    found = sorted(boxes, key=lambda box: (box[0, 1], box[0, 0]))
    for last in range(1, len(found)):
        for at in range(last, 0, -1):
            before, box = found[at - 1], found[at]
            if box[0, 1] - before[0, 1] >= SAME_LINE or box[0, 0] >= before[0, 0]:
                break
            found[at - 1 : at + 1] = box, before
    return found


def line_size(corners: Array) -> tuple[int, int]:
    """Return width and height of a text's cut-out, before it is turned, in pixels."""
    top, right, bottom, left = np.linalg.norm(corners - np.roll(corners, -1, 0), axis=1)
    return int(max(top, bottom)), int(max(left, right))


def proportion(corners: Array) -> float:
    """Return how many times as wide as high the cut-out of a text is."""
    width, height = line_size(corners)
    return height / width if height >= UPRIGHT * width else width / height


def cut_out(picture: Picture, corners: Array) -> Picture:
    """Return a text of a picture as a horizontal line, which may be upside down."""
    width, height = line_size(corners)
    to = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    line = np.empty((height, width, 3), np.uint8)
    way = cv2.getPerspectiveTransform(corners, to)
    size = width, height
    cv2.warpPerspective(picture, way, size, line, cv2.INTER_CUBIC, cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(np.rot90(line)) if height >= UPRIGHT * width else line
