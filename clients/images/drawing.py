"""Draws what a model found on the picture, and writes pictures that are answers."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase64
from PIL import Image, ImageDraw

from clients.images.pictures import Picture, as_rgb

FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG"}
SURE = 0.5  # the least score of a keypoint that is drawn
GOLDEN = 0.618034  # the golden ratio's fraction: neighbouring class ids get distant hues
TINT = 0.5  # how much of a class's colour is over the picture


def colour_of(index: int) -> tuple[int, ...]:
    """Return the colour of a class, in RGB."""
    hue = colorsys.hsv_to_rgb(index * GOLDEN % 1, 0.9, 0.85)
    return tuple(round(255 * part) for part in hue)


# Of a mask: class 0, mostly the background, is black, as in the masks of PASCAL VOC.
PALETTE = [0, 0, 0, *(part for index in range(1, 256) for part in colour_of(index))]


def draw_objects(
    picture: Picture,
    objects: Iterable[Mapping[str, Any]],
    media_type: str,
    look: Callable[[], object],
) -> bytes:
    """Return the file of a picture with objects on it, as they are answered, masks as polygons.

    `look` raises where the time is used up.
    """
    drawn = Image.fromarray(picture)
    draw = ImageDraw.Draw(drawn, "RGBA")  # the colours of masks let the picture through
    size = max(12, round(min(drawn.size) / 25))
    line = max(2, size // 8)
    for one in objects:
        look()
        colour, (x1, y1, x2, y2) = colour_of(one["index"]), one["box"].values()
        for polygon in one.get("mask", ()):
            places = [tuple(at) for at in polygon]
            draw.polygon(places, fill=(*colour, round(255 * TINT)), outline=colour)
        if corners := one.get("corners"):
            draw.polygon([(at["x"], at["y"]) for at in corners], outline=colour, width=line)
        else:
            draw.rectangle((x1, y1, x2, y2), outline=colour, width=line)
        for at in one.get("keypoints", ()):
            if at.get("score", 1) >= SURE:
                draw.circle((at["x"], at["y"]), line, fill=colour, outline="white")
        text = f" {one['label']} {one['score']:.2f} "
        left, _, right, bottom = draw.textbbox((x1, y1), text, font_size=size)
        # Labels stay inside the picture.
        across = min(0, drawn.width - right)
        draw.rectangle((left + across, y1, right + across, bottom + 2), fill=colour)
        draw.text((x1 + across, y1), text, font_size=size, fill="white")
    return save_picture(drawn, media_type)


def as_mask(classes: npt.NDArray[np.uint8]) -> Image.Image:
    """Return a mask whose pixels are numbers of classes, which a palette gives colours."""
    mask = Image.fromarray(classes)
    mask.putpalette(PALETTE)
    return mask


def lay_over(picture: Picture, mask: Image.Image) -> Image.Image:
    """Return a picture with the mask over it, which is of its size.

    The classes of `as_mask` tint it, but for class 0; a grey mask is how much of it is kept.
    """
    whole = Image.fromarray(picture)
    if mask.mode == "L":
        whole.putalpha(mask)
        return whole
    tinted = Image.blend(whole, mask.convert("RGB"), TINT)
    tinted.paste(whole, mask=Image.fromarray(np.asarray(mask) == 0))
    return tinted


def save_picture(picture: Image.Image, media_type: str = "image/png") -> bytes:
    """Return the file of a picture; JPEG has no transparency, which is white there."""
    if media_type == "image/jpeg":
        picture = as_rgb(picture)
    out = io.BytesIO()
    # PNG of the least compression takes a fifth of the time, and a tenth more bytes.
    picture.save(out, FORMATS[media_type], quality=90, compress_level=1)
    return out.getvalue()


def as_base64(picture: Image.Image) -> str:
    """Return a picture for an answer in JSON: base64 of a PNG."""
    return pybase64.b64encode_as_string(save_picture(picture))


def as_file(text: str, media_type: str) -> bytes:
    """Return the file of a picture of `as_base64`."""
    if media_type == "image/png":
        return pybase64.b64decode(text)
    return save_picture(from_base64(text), media_type)


def from_base64(text: str) -> Image.Image:
    """Return the picture of `as_base64`."""
    return Image.open(io.BytesIO(pybase64.b64decode(text)))
