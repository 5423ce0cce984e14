"""Pictures: base64 in, pixels out. Shared by every client that looks at one."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pybase64
import simplejpeg
from PIL import Image, ImageOps

from clients.errors import BadPayload

Picture = npt.NDArray[np.uint8]

# Pillow's own limit is a constant; the one in `decode_picture` is a setting.
Image.MAX_IMAGE_PIXELS = None

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
EXPECTED = "expected base64 of a JPEG, PNG, WebP or BMP picture"

# The smallest of pictures, for examples: a PNG of one grey pixel.
EXAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGOoBwAAgQCAUm0W4wAAAABJRU5ErkJggg=="
)


def decode_base64(text: str, name: str) -> bytes:
    """Return the bytes that `text` encodes; line breaks and a `data:` prefix are allowed.

    Raises:
        BadPayload: it is not base64.

    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error, or characters beyond ASCII
        raise BadPayload(f"`{name}` is not base64: {error}", hint=EXPECTED) from error


def decode_picture(data: bytes, name: str, max_pixels: int) -> Picture:
    """Return the pixels of an encoded picture.

    Args:
        data: a JPEG, PNG, WebP or BMP file.
        name: what to call it in an error.
        max_pixels: the most pixels it may have, judged by its header before it is decoded.

    Returns:
        uint8 of shape [height, width, 3], RGB, upright: the EXIF orientation is applied, as a
        browser or a viewer does. An alpha channel is dropped.

    Raises:
        BadPayload: it is no picture, a damaged one, or too large.

    """
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except (OSError, ValueError, SyntaxError) as error:
        raise BadPayload(
            f"`{name}` is not a picture: {len(data)} bytes that begin with {data[:8]!r}",
            hint=EXPECTED,
        ) from error
    if picture.width * picture.height > max_pixels:
        raise too_large(name, f"{picture.width}×{picture.height}", max_pixels)
    try:
        if picture.format == "JPEG" and picture.mode in {"RGB", "L"}:
            return decode_jpeg(data, picture)
        return np.asarray(as_rgb(ImageOps.exif_transpose(picture)))
    except Exception as error:
        # Pillow's decoders raise a dozen kinds of exception over damaged files.
        raise BadPayload(
            f"`{name}` is a damaged {picture.format} picture: {error}", hint=EXPECTED
        ) from error


# The EXIF orientations 2 to 8, each as Pillow turns it right.
ORIENTATION = 0x0112
UPRIGHT: Mapping[int, Callable[[Picture], Picture]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90,
}


def decode_jpeg(data: bytes, header: Image.Image) -> Picture:
    """Return the pixels of a JPEG, the same as Pillow's, sooner.

    One that is damaged is left to Pillow, which forgives more.
    """
    try:
        pixels: Picture = simplejpeg.decode_jpeg(data, "RGB")
    except ValueError:
        return np.asarray(as_rgb(ImageOps.exif_transpose(header)))
    turn = UPRIGHT.get(header.getexif().get(ORIENTATION, 1))
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


def as_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        # Pillow clips 16-bit grey at 255; its upper byte is the picture.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    return picture.convert("RGB")


def too_large(name: str, size: str, max_pixels: int) -> BadPayload:
    return BadPayload(
        f"`{name}` is a picture of {size} pixels",
        hint=f"expected at most {max_pixels:,} pixels: make it smaller before sending it",
    )
