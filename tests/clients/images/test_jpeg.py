"""JPEG pictures: the same pixels as Pillow's, whatever the header says."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from clients.errors import BadPayload
from clients.images.jpeg import header_of_plain_jpeg
from tests.clients.images.test_pictures import COLOURS, decode, encoded


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_is_pillow_s_own_pixels_turned_as_pillow_turns_them(orientation: int) -> None:
    noise = np.random.default_rng(3).integers(0, 255, (6, 9, 3), np.uint8)
    picture = Image.fromarray(noise).resize((93, 61))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for options in ({"quality": 75}, {"quality": 95, "progressive": True}, {"subsampling": 0}):
        for mode in ("RGB", "L"):
            data = encoded(picture.convert(mode), "JPEG", exif=exif, **options)
            expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
            assert np.array_equal(decode(data), np.asarray(expected))


XMP = b"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description
 tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>"""


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 75},
        {"quality": 95, "progressive": True, "subsampling": 0},
        {"comment": b"\xff\xda" * 200, "icc_profile": bytes(range(256)) * 600},
        {"keep_rgb": True},
        {"xmp": XMP},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_without_exif_is_pillow_s_own_pixels(mode: str, options: dict[str, Any]) -> None:
    noise = np.random.default_rng(4).integers(0, 255, (6, 9, 3), np.uint8)
    data = encoded(Image.fromarray(noise).resize((93, 61)).convert(mode), "JPEG", **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert expected.size == ((61, 93) if "xmp" in options else (93, 61))
    assert np.array_equal(decode(data), np.asarray(expected))
    header = header_of_plain_jpeg(data)
    if mode == "CMYK" or "xmp" in options:
        assert header is None
    else:
        assert header == ("JPEG", mode, (93, 61), None)


@pytest.mark.parametrize("sampling", [0x11, 0x12, 0x14, 0x21, 0x22, 0x41, 0x42])
def test_every_sampling_of_colours_is_pillow_s_own_pixels(sampling: int) -> None:
    """ITU-T T.81, B.2.2: the first component's factors stand behind its number."""
    noise = np.random.default_rng(6).integers(0, 255, (64, 64, 3), np.uint8)
    data = bytearray(encoded(Image.fromarray(noise), "JPEG", subsampling=0))
    data[data.index(b"\xff\xc0") + 11] = sampling
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(decode(bytes(data)), np.asarray(expected))


@pytest.mark.parametrize("filling", [1, 2, 3, 1000])
def test_filling_before_the_orientation(filling: int) -> None:
    """ITU-T T.81, B.1.1.2: any marker may have more bytes of 0xff before it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = b"\xda" * 60_000
    data = encoded(Image.fromarray(COLOURS), "JPEG", exif=exif, icc_profile=profile)
    at = data.index(b"\xff\xe1")
    filled = data[:at] + b"\xff" * filling + data[at:]
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(filled))).convert("RGB")
    assert expected.size == (8, 16)
    assert np.array_equal(decode(filled), np.asarray(expected))


def test_a_jpeg_of_twelve_bits_is_refused_in_the_same_words() -> None:
    data = bytearray(encoded(Image.fromarray(COLOURS), "JPEG"))
    data[data.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(BadPayload, match="`img` is not a picture: "):
        decode(bytes(data))


def test_a_jpeg_s_header_may_be_cut_off_anywhere() -> None:
    whole = encoded(Image.fromarray(COLOURS), "JPEG", comment=b"a comment")
    for end in range(whole.index(b"\xff\xda") + 10):
        with pytest.raises(BadPayload):
            decode(whole[:end])


PHOTO = Image.fromarray(np.random.default_rng(7).integers(0, 255, (6, 9, 3), np.uint8)).resize(
    (93, 61)
)


@pytest.mark.parametrize("options", [{"quality": 75}, {"progressive": True}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_that_is_cut_off_is_refused(mode: str, options: dict[str, Any]) -> None:
    """Wherever it ends, also before its end marker."""
    data = encoded(PHOTO.convert(mode), "JPEG", **options)
    assert data.endswith(b"\xff\xd9")
    for end in range(data.rindex(b"\xff\xda") + 20, len(data) - 1):
        with pytest.raises(BadPayload, match="damaged"):
            decode(data[:end])
