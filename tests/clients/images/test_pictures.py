"""Decoding: every format, upright, and nothing that is not a picture."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import threading
import time
import zlib

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from clients.errors import BadPayload, TooManyRequests
from clients.images.pictures import (
    EXAMPLE,
    Room,
    bytes_per_pixel,
    check_header,
    decode_picture,
    room,
)
from clients.request import Request
from tests.conftest import PATIENCE_S, wait_for

COLOURS = np.zeros((8, 16, 3), np.uint8)
COLOURS[:, :8] = [255, 0, 0]
COLOURS[:, 8:] = [0, 0, 255]


# Prints the bytes by which the memory grows while a picture is decoded.
PEAK = """if True:
    import re, sys
    from pathlib import Path
    from clients.images.pictures import decode_picture
    data = sys.stdin.buffer.read()
    def taken(what):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(what + r":\\s+(\\d+)", status)[1])
    before = taken("VmRSS")
    decode_picture(data, "img", 2 * 10**7)
    print(taken("VmHWM") - before)
"""


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def decode(data: bytes, max_pixels: int = 10_000) -> np.ndarray:
    return decode_picture(data, "img", max_pixels)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
def test_every_format_gives_red_green_blue(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = decode(encoded(Image.fromarray(COLOURS), kind, **options))
    assert pixels.shape == (8, 16, 3)
    assert pixels.dtype == np.uint8
    tolerance = 8 if kind == "JPEG" else 0
    assert np.abs(pixels[4, 2].astype(int) - [255, 0, 0]).max() <= tolerance
    assert np.abs(pixels[4, 13].astype(int) - [0, 0, 255]).max() <= tolerance


def test_the_picture_is_upright() -> None:
    """EXIF orientation 6: shown rightly when turned by 90 degrees clockwise."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = decode(encoded(Image.fromarray(COLOURS), "PNG", exif=exif))
    assert pixels.shape == (16, 8, 3)
    assert pixels[2, 4].tolist() == [255, 0, 0]  # what was left is now above


@pytest.mark.parametrize("mode", ["P", "1", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.fromarray(COLOURS).convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    assert decode(encoded(image, kind)).shape == (8, 16, 3)


def test_a_picture_is_as_it_is_where_nobody_can_read_how_it_is_to_be_turned() -> None:
    for kind in ("PNG", "WEBP"):
        data = encoded(Image.fromarray(COLOURS), kind, exif=b"Exif\0\0nothing", lossless=True)
        assert np.array_equal(decode(data), COLOURS)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_else_the_exif_data_say_does_not_matter(kind: str) -> None:
    """Tags that Pillow can read, but not write again (EXIF 2.3: a width is no fraction)."""
    entries = struct.pack("<HHIHxx", 0x0112, 3, 1, 6) + struct.pack("<HHIf", 0x0100, 11, 1, 0.5)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entries + bytes(4)
    data = encoded(Image.fromarray(COLOURS), kind, exif=exif, lossless=True)
    assert np.array_equal(decode(data), np.rot90(COLOURS, -1))


def test_a_picture_with_others_behind_it_is_the_first_one() -> None:
    """As telephones write them: Pillow calls such a JPEG MPO."""
    first, other = (Image.fromarray(np.ascontiguousarray(x)) for x in (COLOURS, COLOURS[::-1]))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(first, "MPO", save_all=True, append_images=[other], exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert opened.format == "MPO"
    assert np.array_equal(decode(data), np.asarray(ImageOps.exif_transpose(opened).convert("RGB")))


def test_sixteen_bit_grey_keeps_its_shades() -> None:
    grey = Image.fromarray(np.full((4, 4), 0x8040, np.uint16))
    assert decode(encoded(grey, "PNG"))[0, 0].tolist() == [0x80, 0x80, 0x80]


@pytest.mark.parametrize(
    "data",
    [b"", b"hello, I am a text file", b"GIF89a" + bytes(40), b"\xff\xd8\xff"],
    ids=["empty", "text", "gif", "jpeg header"],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(BadPayload) as caught:
        decode(data)
    assert "JPEG, PNG, WebP, BMP or GIF" in caught.value.hint


def test_of_a_gif_the_first_frame_is_taken() -> None:
    others = [Image.fromarray(np.ascontiguousarray(COLOURS[::-1, ::-1]))] * 3
    for palette in (Image.fromarray(COLOURS), Image.fromarray(COLOURS).convert("P")):
        data = encoded(palette, "GIF", save_all=True, append_images=others, duration=10)
        assert Image.open(io.BytesIO(data)).is_animated
        assert np.array_equal(decode(data), COLOURS)


def test_a_gif_is_as_large_as_its_first_frame_where_that_is_larger_than_it_says() -> None:
    """Compuserve's GIF89a, 18 and 20: the screen's size, then the frame's place and size."""
    data = bytearray(encoded(Image.fromarray(COLOURS), "GIF"))
    assert data[6:10] == struct.pack("<HH", 16, 8)
    data[6:10] = struct.pack("<HH", 1, 1)
    at = data.index(b"," + struct.pack("<HHHH", 0, 0, 16, 8))
    data[at + 5 : at + 9] = struct.pack("<HH", 5000, 5000)
    with pytest.raises(BadPayload, match="5000×5000 pixels"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (encoded(Image.fromarray(COLOURS), "TIFF"), "a TIFF"),
        (encoded(Image.fromarray(COLOURS), "JPEG2000"), "a JPEG 2000"),
        (b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miaf", "a HEIC, an AVIF or a video"),
        (
            b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
            "an SVG or other XML",
        ),
        (b"%PDF-1.7", "a PDF"),
    ],
)
def test_what_is_a_picture_and_not_taken_is_named(data: bytes, named: str) -> None:
    with pytest.raises(BadPayload, match=f"`img` is {named}, which is not supported") as caught:
        decode(data)
    assert "convert it" in caught.value.hint


def test_a_cut_off_picture_is_refused() -> None:
    whole = encoded(
        Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)), "PNG"
    )
    with pytest.raises(BadPayload, match="damaged"):
        decode(whole[: len(whole) // 2])


def test_a_picture_too_large_is_refused_by_its_header() -> None:
    """30,000 × 30,000 pixels in 100 bytes: nothing of it may be decoded."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(BadPayload, match="pixels") as caught:
        decode(bomb, 50_000_000)
    assert "at most 50,000,000 pixels" in caught.value.hint


TRANSPARENT = np.zeros((2, 4, 4), np.uint8)
"""Columns: red, half of it, none of it, none of green; over white, by hand."""
TRANSPARENT[:, :3, 0], TRANSPARENT[:, 3, 1] = 255, 255
TRANSPARENT[..., 3] = [255, 128, 0, 0]
ON_WHITE = [[255, 0, 0], [255, 127, 127], [255, 255, 255], [255, 255, 255]]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_transparent_is_white(kind: str) -> None:
    image = Image.fromarray(TRANSPARENT, "RGBA")
    data = encoded(image, kind, lossless=True, exact=True)
    assert Image.open(io.BytesIO(data)).convert("RGB").getpixel((3, 0)) == (0, 255, 0)  # hidden
    assert np.abs(decode(data).astype(int) - ON_WHITE).max() <= 1


@pytest.mark.parametrize(
    ("mode", "transparent"), [("LA", None), ("L", 7), ("P", 7), ("RGB", (7, 7, 7))]
)
def test_a_colour_may_stand_for_what_is_transparent(mode: str, transparent: object) -> None:
    """The left pixel is 7 and transparent, the right one is 100."""
    image = Image.fromarray(np.array([[7, 100]], np.uint8))
    if mode == "P":
        image.putpalette(bytes(np.repeat(np.arange(256, dtype=np.uint8), 3)))
    elif mode == "LA":
        image.putalpha(Image.fromarray(np.array([[0, 255]], np.uint8)))
    else:
        image = image.convert(mode)
    options = {} if transparent is None else {"transparency": transparent}
    assert decode(encoded(image, "PNG", **options))[0].tolist() == [[255] * 3, [100] * 3]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_changes_nothing(mode: str) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (9, 7, 3), np.uint8)
    image = Image.fromarray(noise).convert("L" if mode == "LA" else "RGB")
    expected = np.asarray(image.convert("RGB"))
    image.putalpha(255)
    assert np.array_equal(decode(encoded(image, "PNG")), expected)


def test_the_example_is_a_picture_for_every_decoder() -> None:
    """A class may hand it on to any of them."""
    data = base64.b64decode(EXAMPLE)
    pixels = decode(data, 176 * 119)
    assert pixels.shape == (119, 176, 3)
    assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(data))))
    assert np.array_equal(pixels, simplejpeg.decode_jpeg(data, "RGB"))
    by_opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.abs(pixels.astype(int) - by_opencv).mean() < 1
    assert len(EXAMPLE) < 6000  # it is shown for every model that takes pictures


def test_a_line_of_millions_of_pixels_is_no_picture() -> None:
    """100 kB of PNG hold 50 million, which take half a minute to resize, and minutes to draw on."""
    with pytest.raises(BadPayload, match="65501×2 pixels") as caught:
        decode(encoded(Image.new("L", (65_501, 2)), "PNG"), 10**6)
    assert "65,500" in caught.value.hint
    assert decode(encoded(Image.new("L", (2, 65_500)), "PNG"), 10**6).shape == (65_500, 2, 3)


def test_of_large_pictures_as_many_are_decoded_at_a_time_as_there_is_room_for() -> None:
    """50 megapixels at most, so 100 at a time: two of 40, one of them with two of 25, any of 4."""
    room, most, inside = Room(), 50_000_000, []
    ends = {name: threading.Event() for name in "abcd"}

    def decode(name: str, pixels: int) -> None:
        with room.taken(pixels, most):
            inside.append(name)
            ends[name].wait(PATIENCE_S)
            inside.remove(name)

    threads = [
        threading.Thread(target=decode, args=one)
        for one in (("a", 40_000_000), ("b", 40_000_000), ("c", 40_000_000), ("d", 4_000_000))
    ]
    for thread, now in zip(threads, ("a", "ab", "ab", "abd"), strict=True):
        thread.start()
        wait_for(lambda now=now: "".join(sorted(inside)) == now, now)  # type: ignore[misc]
    assert "c" not in inside
    ends["b"].set()
    wait_for(lambda: sorted(inside) == ["a", "c", "d"], "the third in the place of the second")
    for end in ends.values():
        end.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    with room.taken(most, most), room.taken(most, most):
        pass


def test_large_pictures_take_the_memory_that_is_free_one_by_one_where_only_one_fits() -> None:
    """Two PNG files of 49 megapixels, 190 kB each, had the web worker killed under 1536 MiB."""
    own, pixels, most = Room(), 40_000_000, 50_000_000
    own.fits, own.most = lambda size: size <= 500e6, 600e6
    came: list[str] = []

    def enter(each: float) -> None:
        try:
            with Request(deadline=time.monotonic() + 4).active(), own.taken(pixels, most, each):
                came.append("in")
        except (BadPayload, TooManyRequests) as error:
            came.append(error.message[:40])

    waits = threading.Thread(target=enter, args=(7,), daemon=True)
    with own.kept():
        with own.taken(pixels, most, 7):
            waits.start()
        waits.join(PATIENCE_S)  # the picture is being resized
        with own.taken(pixels, most, 7):  # a second one, in place of the first
            pass
    for each in (7, 13, 16):
        enter(each)
    assert came == [
        "there is no room now for a picture of 40",
        "in",
        "there is no room now for a picture of 40",
        "the container has too little memory for ",
    ]


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("PNG", "P"), ("WEBP", "RGB")])
def test_a_picture_takes_no_more_memory_than_was_counted(kind: str, mode: str) -> None:
    """Measured in a process of its own, in bytes for each pixel; they were 14, 11 and 22."""
    data = encoded(Image.new(mode, (4000, 4000), 1), kind)
    room_for = bytes_per_pixel(check_header(data, "img", 2 * 10**7, ""), data)
    measured = subprocess.run(
        [sys.executable, "-c", PEAK], input=data, check=True, capture_output=True
    )
    assert 3 <= int(measured.stdout) / 16e6 <= room_for


def test_a_large_picture_waits_for_room_a_while_and_others_go_before_it() -> None:
    """Of 100 megapixels 60 are taken: 50 more have no room, and 40 behind them do not pass."""
    own, most = Room(), 50_000_000
    came: dict[int, object] = {}

    def wait(pixels: int, seconds: float) -> None:
        try:
            with Request(deadline=time.monotonic() + seconds).active(), own.taken(pixels, most):
                came[pixels] = f"{len(own._queue)} before it"
        except TooManyRequests as error:
            came[pixels] = error.message[:51]

    with own.taken(60_000_000, most):
        first = threading.Thread(target=wait, args=(50_000_000, 2), daemon=True)
        second = threading.Thread(target=wait, args=(40_000_000, PATIENCE_S), daemon=True)
        first.start()
        wait_for(lambda: own._queue or came, "a place")
        second.start()
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
    refused = "there is no room now for a picture of 50 megapixels"
    assert came == {50_000_000: refused, 40_000_000: "0 before it"}
    assert not own._queue
    with own.taken(most, most), own.taken(most, most):
        pass


def test_a_picture_for_which_there_is_no_room_in_time_is_not_called_damaged() -> None:
    data = encoded(Image.new("RGB", (2100, 2000)), "JPEG")
    came: list[Exception] = []

    def decode_late() -> None:
        try:
            with Request(deadline=time.monotonic() + 2).active():
                decode(data, 5_000_000)
        except Exception as error:
            came.append(error)

    with room.taken(10_000_000, 5_000_000):
        thread = threading.Thread(target=decode_late, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
    assert [type(error) for error in came] == [TooManyRequests]
    assert decode(data, 5_000_000).shape == (2000, 2100, 3)


def test_what_large_pictures_have_left_is_given_back_once_when_none_comes_any_more() -> None:
    now = [0.0]
    room = Room(lambda: now[0])
    with room.taken(room.SMALL, 50_000_000):
        pass
    now[0] = 100.0
    assert not room.was_left()
    with room.taken(room.SMALL + 1, 50_000_000):
        now[0] = 200.0
        assert not room.was_left()
    seen = [room.was_left() for now[0] in (200.0, 204.9, 205.1, 300.0)]
    assert seen == [False, False, True, False]
