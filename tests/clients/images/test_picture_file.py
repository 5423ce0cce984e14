"""Pictures as files: what is checked without decoding them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from clients.errors import BadPayload
from clients.images import picture_file
from clients.images.picture_file import PictureFile, check_file
from clients.images.pictures import EXPECTED_BYTES
from tests.clients.images.test_pictures import encoded

NOISE = Image.fromarray(np.random.default_rng(5).integers(0, 255, (61, 93, 3), np.uint8))


def checked(data: bytes, most: int = 10**6) -> PictureFile:
    return check_file(data, "img", most, EXPECTED_BYTES)


def with_thumbnail(orientation: int = 1) -> bytes:
    """Return a JPEG with a whole small one in its EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(NOISE, "JPEG", exif=exif)
    length = int.from_bytes(data[4:6], "big")
    inside = encoded(NOISE.resize((8, 8)), "JPEG")
    return (
        data[:4]
        + (length + len(inside)).to_bytes(2, "big")
        + data[6 : 4 + length]
        + inside
        + data[4 + length :]
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_picture(orientation: int) -> None:
    data = with_thumbnail(orientation)
    width, height = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size
    assert checked(data) == (data, height, width)


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "JPEG": ("JPEG", {}),
    "progressive": ("JPEG", {"progressive": True}),
    "PNG": ("PNG", {}),
    "WebP": ("WEBP", {"lossless": True}),
}


@pytest.mark.parametrize("name", FILES)
def test_whole_pictures_are_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, options = FILES[name]
    data = encoded(NOISE, kind, **options)
    monkeypatch.setattr(picture_file, "decode_picture", None)
    assert checked(data) == (data, 61, 93)


@pytest.mark.parametrize("name", [*FILES, "GIF", "BMP", "thumbnail"])
def test_pictures_that_are_cut_off_are_refused(name: str) -> None:
    kind, options = FILES.get(name, (name, {}))
    data = with_thumbnail() if name == "thumbnail" else encoded(NOISE, kind, **options)
    assert checked(data).data == data
    with pytest.raises(BadPayload, match=r"damaged|is not a picture"):
        checked(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("data", [b"", b"text", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\0\0\xff\xe0"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(BadPayload, match="is not a picture"):
        checked(data)


def test_a_picture_that_is_too_large_is_refused() -> None:
    with pytest.raises(BadPayload, match="93×61 pixels"):
        checked(encoded(NOISE, "PNG"), 5000)
