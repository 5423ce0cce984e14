"""Draws the objects that a detector found on the picture."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from clients.images.pictures import Picture

FORMATS = {"image/jpeg": "JPEG", "image/png": "PNG"}
GOLDEN = 0.618034  # the golden ratio's fraction: neighbouring class ids get distant hues


@dataclass(frozen=True)
class Box:
    """An object: corners in pixels of the picture."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    score: float
    index: int


def as_object(box: Box) -> dict[str, Any]:
    """Return an object with named fields; the box's corners are pixels of the picture."""
    corners = {"x1": box.x1, "y1": box.y1, "x2": box.x2, "y2": box.y2}
    return {"label": box.label, "index": box.index, "score": box.score, "box": corners}


def draw_boxes(
    picture: Picture, boxes: Iterable[Box], media_type: str, look: Callable[[], object]
) -> bytes:
    """Return the file of a picture with boxes on it; `look` raises where the time is used up."""
    drawn = Image.fromarray(picture)
    draw = ImageDraw.Draw(drawn)
    size = max(12, round(min(drawn.size) / 25))
    for box in boxes:
        look()
        hue = colorsys.hsv_to_rgb(box.index * GOLDEN % 1, 0.9, 0.85)
        colour = tuple(round(255 * part) for part in hue)
        draw.rectangle((box.x1, box.y1, box.x2, box.y2), outline=colour, width=max(2, size // 8))
        text = f" {box.label} {box.score:.2f} "
        left, _, right, bottom = draw.textbbox((box.x1, box.y1), text, font_size=size)
        # Labels stay inside the picture.
        across = min(0, drawn.width - right)
        draw.rectangle((left + across, box.y1, right + across, bottom + 2), fill=colour)
        draw.text((box.x1 + across, box.y1), text, font_size=size, fill="white")
    out = io.BytesIO()
    drawn.save(out, FORMATS[media_type], quality=90)
    return out.getvalue()
