"""Resizes pictures to the size that a model takes.

For classifiers with Pillow's filters, in a quarter of Pillow's time; for detectors letterboxed.
On Linux on Arm, for which the resampler has no wheel, Pillow itself resizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.images.pictures import Picture

try:
    import cykooz_resizer as fast
except ModuleNotFoundError:
    fast = None

# One thread of the web worker answers a request; the cores are for the models.
cv2.setNumThreads(1)

# Pillow's names of filters, and the resampler's.
FILTERS: Mapping[str, str] = {
    "nearest": "",
    "bilinear": "bilinear",
    "bicubic": "catmull_rom",  # as Pillow's, with a = -0.5
    "lanczos": "lanczos3",
}
REACH = 3  # pixels of the smaller picture that Lanczos, the widest filter, reads on each side
BAND = 2**20  # bytes that are copied at a time, to stay in a core's cache
FILL = 114  # the grey around a letterboxed picture that YOLO was trained with
FITS = ("centre", "top-left", "line", "stretch")
"""Where a picture lies in a model's rectangle: whole in its middle or corner, as a line of text at
its left with the full height, squeezed where it is longer, or filling it."""
LEAST_ROWS = 32  # of a band, because the filter is computed again for each band

# Left, top, width and height, in pixels, which need not be whole.
Box = tuple[float, float, float, float]


def resized(
    picture: Picture,
    resize: int | tuple[int, int],
    crop: tuple[int, int],
    interpolation: str = "bicubic",
) -> Picture:
    """Resize a picture and crop its middle, as torchvision's Resize and CenterCrop.

    The filter matters: another one than in training moves logits by 3. Rows are resized before
    columns, as Pillow did up to version 12, and does since for all but portraits: pixels of a
    photograph differ by at most one shade (two with Lanczos), and logits of a ResNet-50 by 0.03; in
    the other order by 0.15. Only the crop is computed.

    The picture is uint8 [height, width, 3]; `resize` is the new length of its shorter side, or
    [height, width], not less than the `crop`, of which uint8 [height, width, 3] is returned,
    read-only. All `FILTERS` but "nearest" antialias. Raises ValueError: the crop is larger.
    """
    height, width = picture.shape[:2]
    if isinstance(resize, int):
        short = min(height, width)
        resize = (int(resize * height / short), int(resize * width / short))
    if resize[0] < crop[0] or resize[1] < crop[1]:
        raise ValueError(f"the crop is {crop}, but the picture is resized to {resize}")
    top, left = (round((one - cut) / 2) for one, cut in zip(resize, crop, strict=True))
    y, x = height / resize[0], width / resize[1]  # pixels of the picture for one of the small one
    if x < 1 < y:
        # Wider rows of a picture that is one pixel wide and millions high would be gigabytes. The
        # library resizes columns first.
        return resample(picture, crop, (left * x, top * y, crop[1] * x, crop[0] * y), interpolation)
    reach = REACH * max(1, y) + 1
    first = max(0, math.floor(top * y - reach))
    last = min(height, math.ceil((top + crop[0]) * y + reach))
    rows = np.empty((last - first, crop[1], 3), np.uint8)
    band = max(LEAST_ROWS, BAND // picture[0].nbytes)
    for begin in range(0, len(rows), band):
        part = picture[first + begin : min(first + begin + band, last)]
        box = (left * x, 0, crop[1] * x, len(part))
        rows[begin : begin + len(part)] = resample(part, (len(part), crop[1]), box, interpolation)
    return resample(rows, crop, (0, top * y - first, crop[1], crop[0] * y), interpolation)


def resample(picture: Picture, size: tuple[int, int], box: Box, interpolation: str) -> Picture:
    """Return a part of a picture, `box`, in another size: height and width."""
    (left, top, wide, high), (height, width) = box, picture.shape[:2]
    # Rounding may put an edge just outside of the picture.
    if fast is None:
        edges = (left, top, min(left + wide, width), min(top + high, height))
        way = Image.Resampling[interpolation.upper()]
        return np.asarray(Image.fromarray(picture).resize((size[1], size[0]), way, edges))
    way = fast.ResizeAlg.nearest()
    if kernel := FILTERS[interpolation]:
        way = fast.ResizeAlg.convolution(getattr(fast.FilterType, kernel))
    part = fast.CropBox(left, top, min(wide, width - left), min(high, height - top))
    source = fast.ImageData(width, height, fast.PixelType.U8x3, picture.tobytes())
    target = fast.ImageData(size[1], size[0], fast.PixelType.U8x3)
    fast.Resizer().resize(source, target, fast.ResizeOptions(way, crop_box=part))
    return np.frombuffer(target.get_buffer(), np.uint8).reshape(*size, 3)


def planes(picture: Picture) -> Picture:
    """Return [3, height, width] from [height, width, 3]."""
    whole = np.empty((3, *picture.shape[:2]), np.uint8)
    cv2.split(picture, list(whole))  # into it
    return whole


@dataclass(frozen=True)
class Letterbox:
    """A picture in the rectangle of a model, with the way back to its own pixels."""

    shades: npt.NDArray[np.uint8]  # [3, height, width] of the rectangle, RGB
    width: int  # of the picture, in pixels
    height: int  # likewise
    scale: float  # pixels of the rectangle per pixel of the picture, vertically
    left: int  # edge of the picture in the rectangle, in pixels of the rectangle
    top: int  # likewise
    wider: float = 1.0  # the horizontal scale by the vertical one; 1 keeps the picture's shape

    @classmethod
    def around(
        cls,
        picture: Picture,
        size: tuple[int, int] = (640, 640),
        padding: Sequence[int] | None = None,
        fit: str = "centre",
    ) -> Letterbox:
        """Scale uint8 [height, width, 3] into a rectangle of height and width.

        `fit` is one of `FITS`; `padding` is the colour beside the picture, in RGB.
        """
        height, width = picture.shape[:2]
        scale = min(size[0] / height, size[1] / width)
        # As YOLOX, and as YOLOv5. A picture that is one pixel wide must not vanish.
        whole_pixels = int if fit == "top-left" else round
        wide, high = (max(1, whole_pixels(side * scale)) for side in (width, height))
        wider = 1.0
        if fit in ("line", "stretch"):  # the second as Ultralytics for RT-DETR (`scale_fill`)
            scale, (high, wide) = size[0] / height, size
            if fit == "line":
                wide = min(wide, math.ceil(high * (width / height)))
            wider = wide / width / scale
        left, top = (size[1] - wide) // 2, (size[0] - high) // 2
        if fit != "centre":
            left = top = 0
        # One number is filled in a tenth of the time that three take.
        grey = padding is None or len(set(padding)) == 1
        whole = np.full((*size, 3), (padding or (FILL,))[0] if grey else padding, np.uint8)
        whole[top : top + high, left : left + wide] = cv2.resize(
            picture, (wide, high), interpolation=cv2.INTER_LINEAR
        )
        return cls(planes(whole), width, height, scale, left, top, wider)

    def back(self, corners: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return corners [N, 4], x1, y1, x2, y2, in pixels of the picture, clipped to it."""
        ends = self.back_points(corners.reshape(-1, 2, 2))
        return np.clip(ends, 0, [self.width, self.height]).reshape(-1, 4)

    def back_points(self, points: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return points [any, 2], x and y, in pixels of the picture; they may be beside it."""
        moved = points.astype(np.float64) - [self.left, self.top]
        return moved / [self.scale * self.wider, self.scale]
