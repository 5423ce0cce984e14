"""Pictures: base64 in, pixels out. Shared by every client that looks at one."""

from __future__ import annotations

import base64
import io
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pybase64
import simplejpeg
from PIL import Image, ImageChops

from clients.errors import BadPayload, DeadlineExceeded, InferenceError
from clients.request import time_to_wait

Picture = npt.NDArray[np.uint8]

# Pillow's own limit is a constant; the one in `decode_picture` is a setting.
Image.MAX_IMAGE_PIXELS = None

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # of a GIF the first frame
JPEG = frozenset({"JPEG", "MPO"})  # the second, of telephones, has more pictures behind the first
# A progressive JPEG has about ten scans, each of which the decoder puts over the whole picture: one
# of 75 bytes takes 70 ms for 49 megapixels, and 25 MiB hold 300,000 of them.
MOST_SCANS = 100

# The most that libjpeg writes. 100 kB of PNG hold a line of 50,000,000 pixels, which is resized for
# 24 s, and drawn on for minutes.
MOST_SIDE = 65_500

NO_DIGIT = re.compile(r"[^A-Za-z0-9+/]")

EXPECTED = "expected base64 of a JPEG, PNG, WebP, BMP or GIF picture"
EXPECTED_BYTES = (
    "expected the bytes of a JPEG, PNG, WebP, BMP or GIF picture as they are; base64 is for JSON"
)

# What begins so, and has none of the bytes below, was a picture: each has zeros in its header.
BEGAN_AS_PICTURE = re.compile(rb"\xff\xd8\xff.{8}|RIFF|BM|GIF8[79]a", re.DOTALL)
CHANGED_PNG = re.compile(rb"\x89PNG(?!\r\n\x1a\n).{4}", re.DOTALL)  # its signature is for this
TAKEN_OUT = re.compile(rb"[\r\n\0]")
LINE_ENDS_TAKEN_OUT = (
    "its line ends were taken out or changed, as by curl --data or -d: send it with "
    "curl --data-binary"
)

# What begins so is a picture, or a page, but not taken: the decoders of TIFF are many and old, and
# the size that the header of an AVIF names is not what its decoder takes memory for.
OTHERS: Mapping[str, re.Pattern[bytes]] = {
    "a TIFF": re.compile(rb"II[*+]\0|MM\0[*+]"),
    "an AVIF": re.compile(rb".{4}ftyp(.{4})*?avi[fs]", re.DOTALL),
    "a HEIC": re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL),
    "a JPEG XL": re.compile(rb"\xff\x0a|\0\0\0\x0cJXL "),
    "a JPEG 2000": re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
    "an SVG": re.compile(
        rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?(<!DOCTYPE svg[^>]*>\s*)?<svg", re.DOTALL
    ),
    "a PDF": re.compile(rb"%PDF-"),
}
BEGINNING = 1024  # bytes in which that is looked for

EXAMPLE = base64.b64encode(Path(__file__).with_name("example.jpg").read_bytes()).decode()
"""For examples: a JPEG of 4.4 kB, with a cup of espresso in it, as base64.

It is `coffee.png` of scikit-image (CC0), cut to (64, 2, 541, 325) and made 176×119.
"""


def decode_base64(text: str, name: str) -> bytes:
    """Return the bytes that `text` encodes; line breaks and a `data:` prefix are allowed.

    It may be of the alphabet for addresses, with `-` and `_`. Its padding may be missing: Go's
    RawStdEncoding and Java's withoutPadding() write none.

    Raises:
        BadPayload: it is not base64.

    """
    if text.startswith("data:"):
        _, comma, text = text.partition(",")
        if not comma:
            raise BadPayload(
                f"`{name}` is a data URL without a comma",
                hint='expected "data:image/png;base64,", and the base64 of a picture behind it',
            )
    if "-" in text or "_" in text:  # of the alphabet for addresses: RFC 4648, 5
        text = text.replace("-", "+").replace("_", "/")
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error, or characters beyond ASCII
        padding = "=" * (-len(text) % 4)
    try:
        return pybase64.b64decode(text + padding, validate=True)
    except ValueError as error:  # which always says "Non-base64 digit found"
        raise BadPayload(f"`{name}` is not base64: {fault(text)}", hint=EXPECTED) from error


def fault(text: str) -> str:
    """Return why a text is no base64, with padding or without."""
    digits = text.rstrip("=")
    came, wanted = len(text) - len(digits), -len(digits) % 4
    if "=" in digits:
        return "it has '=' before its end"
    if strange := NO_DIGIT.search(digits):
        return f"it has {strange[0]!r}"
    if wanted == 3:  # one digit, of six bits, behind groups of four
        return f"its {len(digits)} digits are no whole bytes: it is cut off"
    return f"it has {came} '=' at its end instead of {wanted}"


def lost_its_line_ends(data: bytes) -> bool:
    """Whether a file was a picture before a program sent it as a text without line ends."""
    if not BEGAN_AS_PICTURE.match(data) or TAKEN_OUT.search(data):
        return bool(CHANGED_PNG.match(data))
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False  # a text about BMW


def decode_picture(
    data: bytes, name: str, max_pixels: int, expected: str = EXPECTED_BYTES
) -> Picture:
    """Return the pixels of an encoded picture.

    Args:
        data: a JPEG, PNG, WebP, BMP or GIF file; of several frames the first is taken.
        name: what to call it in an error.
        max_pixels: the most pixels it may have, judged by its header before it is decoded.
        expected: the hint where it is none, or a damaged one.

    Returns:
        uint8 of shape [height, width, 3], RGB, upright: the EXIF orientation is applied, as a
        browser or a viewer does. What is transparent is white. A large one waits for `Room`.

    Raises:
        BadPayload: it is no picture, a damaged one, or too large.
        DeadlineExceeded: there was no room for it within the time of the request.

    """
    if expected == EXPECTED_BYTES and lost_its_line_ends(data):  # a GIF may be decoded even so
        raise BadPayload(
            f"`{name}` is not a picture: {len(data)} bytes that begin with {data[:8]!r}",
            hint=LINE_ENDS_TAKEN_OUT,
        )
    header = header_of_plain_jpeg(data) or header_of(opened(data, name, expected))
    width, height = header.size
    if width * height > max_pixels:
        raise too_large(name, f"{width}×{height}", max_pixels)
    if max(header.size) > MOST_SIDE:
        raise BadPayload(
            f"`{name}` is a picture of {width}×{height} pixels",
            hint=f"expected at most {MOST_SIDE:,} on either side",
        )
    is_jpeg = header.format in JPEG
    if is_jpeg and scans(data) > MOST_SCANS:
        raise BadPayload(
            f"`{name}` is a JPEG picture of more than {MOST_SCANS} scans",
            hint="save it anew, as a baseline or a usual progressive JPEG",
        )
    try:
        with room.taken(width * height, max_pixels):
            if is_jpeg and header.mode in {"RGB", "L"}:
                # The same pixels as Pillow's, sooner; of a damaged one Pillow forgives more.
                with suppress(ValueError):
                    return upright(simplejpeg.decode_jpeg(data, "RGB"), header.picture)
            picture = header.picture or opened(data, name, expected)
            if is_jpeg and lacks_its_end_alone(data):
                data += END
                colours = "CMYK" if header.mode == "CMYK" else "RGB"
                whole = simplejpeg.decode_jpeg(data, colours)  # or a ValueError: it lacks more
                if colours == "RGB":
                    return upright(whole, picture)
                picture = opened(data, name, expected)
            return upright(np.asarray(as_rgb(picture)), picture)
    except InferenceError:
        raise
    except Exception as error:
        # Pillow's decoders raise a dozen kinds of exception over damaged files.
        raise BadPayload(
            f"`{name}` is a damaged {header.format} picture: {error}", hint=expected
        ) from error


class Header(NamedTuple):
    """What a picture says before it is decoded, in Pillow's words.

    Args:
        format: "JPEG" and so on.
        mode: "RGB", "L" for grey, and so on.
        size: width and height in pixels.
        picture: Pillow's, where it has read this.

    """

    format: str
    mode: str
    size: tuple[int, int]
    picture: Image.Image | None = None


def opened(data: bytes, name: str, expected: str) -> Image.Image:
    """Return a picture of which Pillow has read the header.

    Raises:
        BadPayload: it is none.

    """
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (OSError, ValueError, SyntaxError) as error:
        if other := next((kind for kind, one in OTHERS.items() if one.match(data[:BEGINNING])), ""):
            raise BadPayload(
                f"`{name}` is {other}, which is not taken",
                hint="convert it, and send a JPEG, PNG, WebP, BMP or GIF picture",
            ) from error
        raise BadPayload(
            f"`{name}` is not a picture: {len(data)} bytes that begin with {data[:8]!r}",
            hint=expected,
        ) from error


def header_of(picture: Image.Image) -> Header:
    return Header(picture.format or "", picture.mode, picture.size, picture)


# Markers of a JPEG; ITU-T T.81, table B.1. All others have no length behind them, or are filling.
SOS, APP1 = 0xDA, 0xE1
SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
MOST_SEGMENTS = 1000  # of a usual picture; one with a large profile has 255 of them
MODES = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB"}


def header_of_plain_jpeg(data: bytes) -> Header | None:
    """Return what a JPEG says that says nothing of its orientation; `None` for other pictures.

    EXIF and XMP, which say that, stand in segments APP1. (Pillow's way through the others was a
    sixth of the Python that the web worker does for a picture.)
    """
    if data[:3] != b"\xff\xd8\xff":
        return None
    place = 2
    try:
        for _ in range(MOST_SEGMENTS):
            marker = data[place + 1]
            if data[place] != 0xFF or marker not in SEGMENTS or marker == APP1:
                return None
            if marker == SOS:
                height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
                mode = MODES.get(colours)
                return Header("JPEG", mode, (width, height)) if mode else None
            place = behind(data, place)
    except (LookupError, ValueError):
        pass  # it is damaged, or of a kind that the library has no name for
    return None


def behind(data: bytes, place: int) -> int:
    """Return where a segment of a JPEG ends; ITU-T T.81, B.1.1.4."""
    return place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")


class Room:
    """Large pictures that are decoded at a time: of as many pixels as two of the largest.

    A decoder has up to three copies of a picture, 9 bytes for each pixel and more, which may have
    come in 34 bytes: 24 of 50 megapixels at a time took 9 GB.
    """

    SMALL = 4 * 10**6
    """Pixels of a picture for which there is always room: as many as requests run take 0.5 GB."""

    QUIET_S = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decoded = 0
        self._left_at = math.inf
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()  # so that a large one is not passed again and again
        self._entered: dict[int, float] = {}

    @contextmanager
    def taken(self, pixels: int, max_pixels: int) -> Iterator[None]:
        """Wait until there is room for so many pixels; at most those of all others before it.

        Raises:
            DeadlineExceeded: there was none within the time of the request.

        """
        if pixels <= self.SMALL:
            yield
            return
        thread = threading.get_ident()
        self._entered[thread] = math.inf
        try:
            with self._changed:
                self._wait(pixels, 2 * max_pixels)
                self._decoded += pixels
            self._entered[thread] = time.monotonic()
            try:
                yield
            finally:
                with self._changed:
                    self._decoded -= pixels
                    self._left_at = self._clock()
                    self._changed.notify_all()
        finally:
            self._entered.pop(thread, None)

    def _wait(self, pixels: int, most: int) -> None:
        """Wait for the first place in the queue, and for room. The lock is held."""
        place = object()
        self._queue.append(place)
        try:
            if not self._changed.wait_for(
                lambda: self._queue[0] is place and self._decoded + pixels <= most, time_to_wait()
            ):
                raise DeadlineExceeded(
                    "the time for this request was used up while a large picture waited until "
                    "others were decoded",
                    hint=f"send fewer pictures of more than {self.SMALL // 10**6} megapixels at a "
                    "time, or make them smaller before sending them",
                )
        finally:
            self._queue.remove(place)
            self._changed.notify_all()

    def entered(self, thread: int) -> float:
        """Return since when a thread decodes a large picture, on the clock of `time.monotonic()`.

        Infinity while it still waits, and its negative where it does neither.
        """
        return self._entered.get(thread, -math.inf)

    def was_left(self) -> bool:
        """Whether large pictures were decoded, and none was lately; true once each time.

        Then there is memory to be given back.
        """
        if self._decoded or self._clock() < self._left_at + self.QUIET_S:
            return False
        self._left_at = math.inf
        return True


room = Room()

SCAN = b"\xff\xda"
AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # what is no pixel, stuffing or restart


def scans(data: bytes) -> int:
    """Return how many scans a JPEG has at most; beyond `MOST_SCANS` it is counted exactly.

    The two bytes that begin a scan may stand in what is no part of the picture, such as the film
    that some telephones append: then the segments are followed.
    """
    count = data.count(SCAN)
    if count <= MOST_SCANS:
        return count
    count, place = 0, 2
    while 0 <= place < len(data) - 4 and data[place] == 0xFF and data[place + 1] != 0xD9:
        is_scan = data[place : place + 2] == SCAN
        count += is_scan
        place = behind(data, place)
        if is_scan:
            found = AFTER_SCAN.search(data, place)
            place = found.start() if found else -1
    return count


END = b"\xff\xd9"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # what begins a frame; T.81, table B.1
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
COEFFICIENTS = 64
MOST_OF_SEGMENT = 1000  # bytes; a frame or a scan of 255 components has fewer


def lacks_its_end_alone(data: bytes) -> bool:
    """Whether a JPEG has begun all scans of its picture, and ends in the last without a marker.

    ITU-T T.81, B.2 and G.1.1.1: each scan brings some coefficients of some components, in a
    progressive one down to a bit. Whether the last scan is whole its decoder has to say.
    """
    missing: set[tuple[int, int]] = set()
    place, in_scan, is_progressive = 2, False, False
    for _ in range(MOST_SEGMENTS):
        if place >= len(data) - 1:
            return in_scan and not missing
        marker, segment = data[place + 1], data[place + 4 : place + MOST_OF_SEGMENT]
        if data[place] != 0xFF or marker not in SEGMENTS or not segment:
            return False
        place, in_scan = behind(data, place), marker == SOS
        count = segment[0] if in_scan else segment[5] if len(segment) > 5 else 0
        if marker in FRAMES:
            is_progressive = marker in PROGRESSIVE
            missing = set(product(segment[6 : 6 + 3 * count : 3], range(COEFFICIENTS)))
        elif in_scan:
            spectral = tuple(segment[1 + 2 * count :][:3])
            first, last, bits = spectral if is_progressive and len(spectral) == 3 else (0, 63, 0)
            if bits % 16 == 0:
                missing.difference_update(product(segment[1::2][:count], range(first, last + 1)))
            found = AFTER_SCAN.search(data, place)
            place = found.start() if found else len(data)
    return False


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


def upright(pixels: Picture, picture: Image.Image | None) -> Picture:
    """Return the pixels as they are to be seen; as they are where nobody can read how that is."""
    if picture is None:  # it says nothing of that
        return pixels
    try:
        turn = UPRIGHT.get(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # as many kinds as there are of damage
        return pixels
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


def planes(picture: Picture) -> Picture:
    """Return the channels one after the other, [3, height, width] of [height, width, 3]."""
    whole = np.empty((3, *picture.shape[:2]), np.uint8)
    cv2.split(picture, list(whole))  # into it
    return whole


def as_rgb(picture: Image.Image) -> Image.Image:
    """Return a picture as it is seen on white: what is transparent may hide anything."""
    if picture.mode.startswith("I;16"):
        # Pillow clips 16-bit grey at 255; its upper byte is the picture.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    if picture.mode != "RGBA":
        picture = picture.convert("RGBA")
    alpha = picture.getchannel("A")
    picture = picture.convert("RGB")
    if alpha.getextrema() != (255, 255):
        picture.paste((255, 255, 255), mask=ImageChops.invert(alpha))
    return picture


def too_large(name: str, size: str, max_pixels: int) -> BadPayload:
    return BadPayload(
        f"`{name}` is a picture of {size} pixels",
        hint=f"expected at most {max_pixels:,} pixels: make it smaller before sending it",
    )
