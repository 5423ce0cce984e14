"""What a JPEG file says before it is decoded: its header, its scans and its end.

The markers and segments are those of ITU-T T.81.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import simplejpeg
from PIL import Image

# A progressive JPEG has about ten scans, and the decoder goes over the whole picture for each: a
# scan of 75 bytes takes 150 ms for 49 megapixels, and 25 MiB hold 300,000 of them. So the largest
# picture may have twelve, and a smaller one as many more as it is smaller.
MOST_SCANS = 100
SCANS_OF_LARGEST = 12

# Table B.1. All other markers have no length behind them, or are fill bytes.
SOS, APP1 = 0xDA, 0xE1
SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
MOST_SEGMENTS = 1000  # of a usual picture; one with a large profile has 255 of them
MODES = {"Gray": "L", "YCbCr": "RGB", "RGB": "RGB"}


class Header(NamedTuple):
    """The header of a picture, in Pillow's terms."""

    format: str  # "JPEG" and so on
    mode: str  # "RGB", "L" for grey, and so on
    size: tuple[int, int]  # width and height in pixels
    picture: Image.Image | None = None  # Pillow's object, if Pillow has read the header


def header_of_plain_jpeg(data: bytes) -> Header | None:
    """Return the header of a JPEG without EXIF and XMP; `None` for any other picture.

    These are in segments APP1, and give the orientation. Without them Pillow's slower reading of
    the header is not needed: it was a sixth of the Python time of the web worker for a picture.
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
        pass  # it is damaged, or has colours that the library does not know
    return None


def behind(data: bytes, place: int) -> int:
    """Return the end of the segment of a JPEG that begins at `place`; B.1.1.4."""
    return place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")


SCAN, END = b"\xff\xda", b"\xff\xd9"
AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither pixels, stuffing nor a restart


def scans(data: bytes) -> int:
    """Return the most scans that a JPEG may have; above SCANS_OF_LARGEST their number.

    The two bytes that begin a scan may also be in data outside of the picture, such as the film
    that some telephones append; so a large number is checked by following the segments, as far as
    these are in order.
    """
    most = data.count(SCAN)
    if most <= SCANS_OF_LARGEST:
        return most
    count, place = 0, 2
    for _ in range(MOST_SEGMENTS):
        begins = data[place : place + 2]
        if begins == END or place >= len(data):
            return count
        if begins[:1] != b"\xff" or begins[-1] not in SEGMENTS:
            return most
        place = behind(data, place)
        if begins == SCAN:
            count += 1
            found = AFTER_SCAN.search(data, place)
            place = found.start() if found else len(data)
    return most
