"""Pictures that are arrays already: a class has decoded them, and asks another model."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from clients.errors import BadPayload


def check_pixels(array: npt.NDArray[Any], name: str, max_pixels: int) -> npt.NDArray[np.uint8]:
    """Return a picture as `Client.picture` returns it.

    Args:
        array: expected uint8 of shape [height, width, 3], RGB; it may be a part of another.
        name: of its field.
        max_pixels: the largest picture allowed.

    """
    height, width, channels = array.shape if array.ndim == 3 else (0, 0, 0)
    if array.dtype != np.uint8 or channels != 3 or not 0 < height * width <= max_pixels:
        raise BadPayload(
            f"`{name}` is an array of {array.dtype} and shape {list(array.shape)}",
            hint="expected uint8 of shape [height, width, 3], RGB, with 1 to "
            f"{max_pixels / 1e6:g} million pixels",
        )
    return np.ascontiguousarray(array)


def as_png(picture: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture as a file, without loss, for a model that decodes by itself."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")  # Pillow: a class needs no OpenCV to import this
    return file.getvalue()
