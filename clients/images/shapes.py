"""What objects have besides their boxes: masks, keypoints, and the corners of rotated boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NotRequired, TypedDict

import cv2
import numpy as np
import numpy.typing as npt

from clients.errors import BadParameter
from clients.images.boxes import Array, as_points
from clients.images.resizing import Letterbox
from clients.images.suppression import FoundObjects

BAND = 2**20  # pixels of a mask that are computed at a time
MOST_NUMBERS = 10**6  # of all masks in an answer, which is 6 MB of JSON; a photo's have some 10,000
POLYGONS, RUN_LENGTHS = "polygons", "rle"
Spot = TypedDict("Spot", {"x": float, "y": float, "score": NotRequired[float]})


def find_keypoints(extra: Array, numbers: int, box: Letterbox) -> list[dict[str, Any]]:
    """Return keypoints [N, any] of so many numbers, x, y and maybe a score, in the picture."""
    points = as_points(extra, numbers)
    placed = np.concatenate([box.back_points(points[..., :2]).round(2), points[..., 2:]], 2)
    return [{"keypoints": one} for one in as_places(placed.round(4))]


def as_places(points: npt.NDArray[Any]) -> list[list[dict[str, float]]]:
    names = ("x", "y", "score")
    return [[dict(zip(names, at, strict=False)) for at in one] for one in points.tolist()]


def find_masks(
    found: FoundObjects,
    prototypes: Array,
    places: Sequence[list[float]],
    box: Letterbox,
    form: str,
) -> Iterator[dict[str, Any]]:
    """Yield the masks of objects, whose boxes are `places`; the arguments are as for `find_mask`.

    Raises BadParameter: all of them have more than `MOST_NUMBERS` numbers.
    """
    left = MOST_NUMBERS
    for weights, corners in zip(found.extra, places, strict=True):
        mask = find_mask(weights, prototypes, corners, box, form)
        left -= len(mask["counts"]) if form == RUN_LENGTHS else 2 * sum(map(len, mask))
        if left < 0:
            raise BadParameter(
                f"the masks of this picture have more than {MOST_NUMBERS:,} numbers",
                hint="raise `confidence`, or send a smaller picture",
            )
        yield {"mask": mask}


def find_mask(
    coefficients: Array, prototypes: Array, corners: list[float], box: Letterbox, form: str
) -> Any:
    """Return the mask of an object, in pixels of the picture.

    It is where the weighted sum of the prototypes exceeds 0, inside of the object's box, as in
    Ultralytics' `process_mask_native`.

    Args:
        coefficients: [C], the weights.
        prototypes: [C, height, width], maps of the whole rectangle.
        corners: x1, y1, x2, y2 of the object's box in the picture.
        box: the picture in its rectangle.
        form: POLYGONS or RUN_LENGTHS.

    Returns:
        polygons, each a list of [x, y] on the edge, without holes; where the box has more than a
        million pixels each second, third, … of a row and column is looked at. Or COCO's run
        lengths, column by column: `{"size": [height, width], "counts": […]}`.

    """
    plane = np.tensordot(coefficients, prototypes, 1)
    left, top, right, bottom = (math.ceil(one) for one in corners)
    pixels = max(1, (right - left) * (bottom - top))
    if form == POLYGONS:
        step = math.ceil(math.sqrt(pixels / BAND))
        x, y = np.arange(left, right, step), np.arange(top, bottom, step)
        mask = in_picture(plane, box, x, y).astype(np.uint8)
        if not mask.size:  # the box is beside the picture
            return []
        found, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        return [(one[:, 0] * step + [left, top]).tolist() for one in found if len(one) > 2]
    band = max(1, BAND // max(1, bottom - top))
    edges = []
    for first in range(left, right, band):
        x, y = np.arange(first, min(right, first + band)), np.arange(top, bottom)
        columns = np.pad(in_picture(plane, box, x, y).T, ((0, 0), (1, 1)))
        column, row = np.nonzero(columns[:, 1:] != columns[:, :-1])
        edges.append((first + column) * box.height + top + row)
    places = np.concatenate(edges) if edges else np.empty(0, np.intp)
    # A run that ends at a column's foot goes on at the head of the next.
    begins, counts = np.unique(places, return_counts=True)
    runs = np.diff(begins[counts == 1], prepend=0, append=box.height * box.width)
    if runs[-1] == 0:  # it ends at the foot of the last column
        runs = runs[:-1]
    return {"size": [box.height, box.width], "counts": runs.tolist()}


def in_picture(
    plane: Array, box: Letterbox, x: npt.NDArray[np.intp], y: npt.NDArray[np.intp]
) -> npt.NDArray[np.bool_]:
    """Return whether a map of the rectangle exceeds 0 at pixels of the picture [y, x]."""
    high, wide = box.shades.shape[1:]
    across = ((x + 0.5) * box.scale * box.wider + box.left) * plane.shape[1] / wide - 0.5
    down = ((y + 0.5) * box.scale + box.top) * plane.shape[0] / high - 0.5
    found: npt.NDArray[np.bool_] = interpolate(interpolate(plane, down).T, across).T > 0
    return found


def interpolate(rows: Array, places: npt.NDArray[np.float64]) -> Array:
    """Return rows between rows, linearly: [places, columns]."""
    places = np.clip(places, 0, len(rows) - 1)
    above = places.astype(np.intp)
    part = (places - above).astype(np.float32)[:, None]
    below = np.minimum(above + 1, len(rows) - 1)
    between: Array = rows[above] * (1 - part) + rows[below] * part
    return between
