"""Pictures for models that decode by themselves: checked by their headers, not decoded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clients.images.arrays import as_png, check_pixels
from clients.images.jpeg import has_its_end
from clients.images.pictures import JPEG, Picture, check_header, decode_picture, orientation

PNG_END = b"IEND\xaeB`\x82"  # the type of the last chunk and its checksum; it has no data
SIDEWAYS = frozenset({5, 6, 7, 8})  # EXIF orientations in which width and height are swapped


class PictureFile(NamedTuple):
    """A picture that was not decoded."""

    data: bytes  # the file
    height: int  # in pixels, turned upright by the EXIF orientation
    width: int  # likewise

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width


def check_file(data: bytes | Picture, name: str, max_pixels: int, expected: str) -> PictureFile:
    """Return a picture's file; the arguments and errors are those of `decode_picture`.

    A file whose end is missing, or whose format does not show it, is decoded here to say what is
    wrong with it.
    """
    if isinstance(data, np.ndarray):
        data = as_png(check_pixels(data, name, max_pixels))
    header = check_header(data, name, max_pixels, expected)
    if not is_whole(data, header.format):
        decode_picture(data, name, max_pixels, expected)
    width, height = header.size
    if orientation(header.picture) in SIDEWAYS:
        width, height = height, width
    return PictureFile(data, height, width)


def is_whole(data: bytes, picture_format: str) -> bool:
    """Whether a file has its end; false too for a format in which this cannot be seen."""
    if picture_format in JPEG:
        return has_its_end(data)
    if picture_format == "PNG":
        return PNG_END in data
    return picture_format == "WEBP"  # whose header libwebp reads from a whole file only
