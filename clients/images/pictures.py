"""Pictures: base64 in, pixels out. Shared by all clients that take pictures."""

from __future__ import annotations

import base64
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pybase64
import simplejpeg
from PIL import Image, ImageChops

from clients.errors import BadPayload, InferenceError, TooManyRequests
from clients.images.jpeg import MOST_SCANS, SCANS_OF_LARGEST, Header, header_of_plain_jpeg, scans
from clients.images.opening import open_picture
from clients.request import time_to_wait

Picture = npt.NDArray[np.uint8]

JPEG = frozenset({"JPEG", "MPO"})  # MPO files of telephones have more pictures behind the first
# The most that libjpeg writes. 100 kB of PNG can hold a line of 50,000,000 pixels, which takes 24 s
# to resize, and minutes to draw on.
MOST_SIDE = 65_500

# The compressions of a BMP that Pillow decodes in Python: 49 megapixels took 6 s.
RUN_LENGTHS = (1, 2)

BAND = 2**18  # pixels that are converted at a time, to stay in a core's cache

EXPECTED = "expected base64 of a JPEG, PNG, WebP, BMP or GIF picture"
EXPECTED_BYTES = (
    "expected the bytes of a JPEG, PNG, WebP, BMP or GIF picture as they are; base64 is for JSON"
)

# A file that begins so and has none of the bytes of TAKEN_OUT was a picture once: every picture has
# zeros in its header.
BEGAN_AS_PICTURE = re.compile(rb"\xff\xd8\xff.{8}|RIFF|BM|GIF8[79]a", re.DOTALL)
CHANGED_PNG = re.compile(rb"\x89PNG(?!\r\n\x1a\n).{4}", re.DOTALL)  # made to show this
TAKEN_OUT = re.compile(rb"[\r\n\0]")
LINE_ENDS_TAKEN_OUT = (
    "its line ends were taken out or changed, as by curl --data or -d: send it with "
    "curl --data-binary"
)

EXAMPLE = base64.b64encode(Path(__file__).with_name("example.jpg").read_bytes()).decode()
"""A payload for examples: a JPEG of 4.4 kB that shows a cup of espresso, as base64.

It is `coffee.png` of scikit-image (CC0), cut to (64, 2, 541, 325) and resized to 176×119.
"""

EXAMPLE_LINE, EXAMPLE_PAGE = (
    base64.b64encode(Path(__file__).with_name(name).read_bytes()).decode()
    for name in ("line.png", "page.png")
)
"""Likewise PNGs of 1 kB that say "Total: 12.99": the line alone, and in the middle of a page."""


def decode_base64(text: str, name: str, expected: str = EXPECTED) -> bytes:
    """Return the bytes of a base64 text; it may have line breaks and a `data:` prefix.

    The URL-safe alphabet with `-` and `_` is allowed too. The padding may be missing: Go's
    RawStdEncoding and Java's withoutPadding() write none.
    """
    if text.startswith("data:"):
        _, comma, text = text.partition(",")
        if not comma:
            raise BadPayload(
                f"`{name}` is a data URL without a comma",
                hint='expected such as "data:image/png;base64,", and the base64 behind it',
            )
    if "-" in text or "_" in text:  # the URL-safe alphabet: RFC 4648, section 5
        text = text.replace("-", "+").replace("_", "/")
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    if padding := "=" * (-len(text) % 4):
        text += padding
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error, or characters beyond ASCII
        raise BadPayload(f"`{name}` is not base64, or cut off", hint=expected) from error


def lost_its_line_ends(data: bytes) -> bool:
    """Whether a file was a picture before it was sent as text, without its line ends."""
    if not BEGAN_AS_PICTURE.match(data) or TAKEN_OUT.search(data):
        return bool(CHANGED_PNG.match(data))
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False  # a text about BMW


def decode_picture(
    data: bytes | Picture, name: str, max_pixels: int, expected: str = EXPECTED_BYTES
) -> Picture:
    """Return the pixels of a picture: uint8 [height, width, 3], RGB, upright as in browsers.

    It comes as a file, or as pixels from a class that asks another. Of several frames the first is
    taken; transparent pixels are white. It may have `max_pixels` by its header; a large one waits
    for `Room`. `name` and `expected` are for errors.

    Raises BadPayload: it is no picture, damaged or too large; TooManyRequests: there was no room
    for a part of the time of the request.
    """
    if isinstance(data, np.ndarray):
        return check_pixels(data, name, max_pixels)
    header = check_header(data, name, max_pixels, expected)
    is_jpeg = header.format in JPEG
    try:
        with room.taken(math.prod(header.size), max_pixels, bytes_per_pixel(header, data)):
            if is_jpeg and header.mode in {"RGB", "L"}:
                # The same pixels as Pillow's, in less time; Pillow reads more damaged files.
                with suppress(ValueError):
                    turn = orientation(header.picture)
                    return upright(simplejpeg.decode_jpeg(data, "RGB"), turn)
            picture = header.picture or open_picture(data, name, expected)
            picture.load()
            turn = orientation(picture)
            return upright(as_pixels(picture), turn)
    except InferenceError:
        raise
    except Exception as error:
        # Pillow's decoders raise a dozen kinds of exceptions for damaged files.
        raise BadPayload(
            f"`{name}` is a damaged {header.format} picture: {error}", hint=expected
        ) from error


def check_pixels(array: Picture, name: str, max_pixels: int) -> Picture:
    """Return the pixels that a class has decoded, and asks another model about."""
    height, width, channels = array.shape if array.ndim == 3 else (0, 0, 0)
    if array.dtype != np.uint8 or channels != 3 or not 0 < height * width <= max_pixels:
        raise BadPayload(
            f"`{name}` is an array of {array.dtype} and shape {list(array.shape)}",
            hint="expected uint8 of shape [height, width, 3], RGB, with 1 to "
            f"{max_pixels / 1e6:g} million pixels",
        )
    return np.ascontiguousarray(array)


def check_header(data: bytes, name: str, max_pixels: int, expected: str) -> Header:
    """Return the header of a picture that may be decoded; the arguments are as above."""
    if expected == EXPECTED_BYTES and lost_its_line_ends(data):  # a GIF might be decoded
        raise BadPayload(
            f"`{name}` is not a picture: {len(data)} bytes that begin with {data[:8]!r}",
            hint=LINE_ENDS_TAKEN_OUT,
        )
    header = header_of_plain_jpeg(data)
    if header is None:
        picture = open_picture(data, name, expected)
        header = Header(picture.format or "", picture.mode, picture.size, picture)
    width, height = header.size
    if width * height > max_pixels:
        raise too_large(name, header, f"{max_pixels:,} pixels")
    if max(header.size) > MOST_SIDE:
        raise too_large(name, header, f"{MOST_SIDE:,} on either side")
    packed = header.picture and header.picture.info.get("compression") in RUN_LENGTHS
    if header.format == "BMP" and packed and width * height > Room.SMALL:
        raise too_large(name, header, f"{Room.SMALL:,} pixels")
    most = min(MOST_SCANS, SCANS_OF_LARGEST * max_pixels // max(1, width * height))
    if header.format in JPEG and scans(data) > most:
        raise BadPayload(
            f"`{name}` is a JPEG picture of more than {most} scans",
            hint="save it again, as a baseline or a usual progressive JPEG",
        )
    return header


def bytes_per_pixel(header: Header, data: bytes) -> float:
    """Return the most bytes that a picture takes for each pixel, until it is resized or drawn.

    Pillow has 4, the result 3, a picture to draw on 4; libwebp has 9 more. Of a JPEG of several
    scans libjpeg has 2 for each coefficient.
    """
    if header.format in JPEG and scans(data) > 1:
        return 16 if header.mode == "CMYK" else 10
    return 17 if header.format == "WEBP" else 7.5


class Room:
    """Limits the large pictures that are decoded at a time, by their pixels and their memory.

    24 pictures of 50 megapixels at a time, of files that may have 34 bytes each, took 9 GB.
    """

    SMALL = 4 * 10**6
    """Smaller pictures do not wait: as many as there are threads take 0.5 GB."""

    PATIENCE = 1 / 4  # of the time that is left: those that wait take the model's slots
    LOOKS, LOOK_S = 5, 0.1  # for memory that no other picture takes
    QUIET_S = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = math.inf  # bytes for one picture
        self.fits: Callable[[int], bool] = lambda _: True  # whether there is memory for bytes now
        self._clock = clock
        self._decoded = 0
        self._bytes = 0
        self._left_at = math.inf
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()  # no picture passes another
        self._entered: dict[int, float] = {}
        self._kept: ContextVar[ExitStack | None] = ContextVar("kept", default=None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the room of a picture that is decoded inside the block until its end."""
        with ExitStack() as stack:
            token = self._kept.set(stack)
            try:
                yield
            finally:
                self._kept.reset(token)

    @contextmanager
    def taken(self, pixels: int, max_pixels: int, each: float = 7.5) -> Iterator[None]:
        """Wait until there is room for a picture, in the order of arrival.

        Raises BadPayload: there is never memory for it; TooManyRequests: there was no room for a
        part of the time of the request.
        """
        if pixels <= self.SMALL:
            yield
            return
        with ExitStack() as own:
            stack = self._kept.get() or own
            stack.close()  # to keep one while it waits for another might last for ever
            stack.enter_context(self._taken(pixels, 2 * max_pixels, int(pixels * each)))
            yield

    @contextmanager
    def _taken(self, pixels: int, most: int, size: int) -> Iterator[None]:
        thread = threading.get_ident()
        self._entered[thread] = math.inf
        try:
            with self._changed:
                self._wait(pixels, most, size)
                self._decoded += pixels
                self._bytes += size
            self._entered[thread] = time.monotonic()
            try:
                yield
            finally:
                with self._changed:
                    self._decoded -= pixels
                    self._bytes -= size
                    self._left_at = self._clock()
                    self._changed.notify_all()
        finally:
            self._entered.pop(thread, None)

    def _wait(self, pixels: int, most: int, size: int) -> None:
        """Wait for the first place in the queue, then for room; the caller holds the lock."""
        what = f"a picture of {pixels / 1e6:.0f} megapixels, which takes {size // 2**20} MiB"
        if size > self.most:
            raise BadPayload(
                f"the container has too little memory for {what}",
                hint="make it smaller before sending it; a JPEG takes the least",
            )
        place = object()
        self._queue.append(place)
        try:
            if self._changed.wait_for(
                lambda: (
                    self._queue[0] is place
                    and self._decoded + pixels <= most
                    and (not self._decoded or self.fits(self._bytes + size))
                ),
                time_to_wait() * self.PATIENCE,
            ):
                for _ in range(self.LOOKS):
                    if self.fits(self._bytes + size):
                        return
                    self._changed.wait(self.LOOK_S)
            raise TooManyRequests(
                f"there is no room now for {what}",
                hint="try again after Retry-After seconds; send fewer pictures of more than "
                f"{self.SMALL // 10**6} megapixels at a time, or make them smaller before sending "
                "them",
            )
        finally:
            self._queue.remove(place)
            self._changed.notify_all()

    def entered(self, thread: int) -> float:
        """Return when a thread began to decode a large picture, by `time.monotonic()`.

        Infinity while it still waits; minus infinity if it does neither.
        """
        return self._entered.get(thread, -math.inf)

    def was_left(self) -> bool:
        """Whether large pictures were decoded, but none lately; true only once each time.

        It is the time to return free memory to the system.
        """
        if self._decoded or self._clock() < self._left_at + self.QUIET_S:
            return False
        self._left_at = math.inf
        return True


room = Room()

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


def upright(pixels: Picture, turn: int) -> Picture:
    """Return the pixels turned by an EXIF orientation."""
    turned = UPRIGHT.get(turn)
    return np.ascontiguousarray(turned(pixels)) if turned else pixels


def orientation(picture: Image.Image | None) -> int:
    """Return the EXIF orientation; 1, upright, where there is none or it cannot be read."""
    if picture is None:  # it has no EXIF data
        return 1
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data raise all kinds
        return 1


def as_pixels(picture: Image.Image) -> Picture:
    """Return the pixels of a picture, which is closed: a copy of each of its bands at a time."""
    width, height = picture.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, BAND // width)
    for top in range(0, height, rows):
        band = picture.crop((0, top, width, min(height, top + rows)))
        pixels[top : top + rows] = np.asarray(as_rgb(band))
    picture.close()
    return pixels


def as_rgb(picture: Image.Image) -> Image.Image:
    """Return a picture on a white background: transparent pixels may have any colour."""
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


def too_large(name: str, header: Header, most: str) -> BadPayload:
    return BadPayload(
        f"`{name}` is a picture of {header.size[0]}×{header.size[1]} pixels",
        hint=f"expected at most {most}: make it smaller before sending it",
    )
