"""Opens a picture with Pillow, which reads its header, as far as that is little work."""

from __future__ import annotations

import io
import re
import warnings

from PIL import Image

from clients.errors import BadPayload

# Pillow's own limit is a constant; that of `decode_picture` is a setting. It warns of each of the
# 60,000 tags that a damaged picture may have.
Image.MAX_IMAGE_PIXELS = None
warnings.filterwarnings("ignore", module=r"PIL\.")

# Of a GIF the first frame is taken. The decoders of TIFF are many and old; the header of an AVIF
# does not state the memory that its decoder needs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
# What phones and programs save instead, by how such a file begins.
OTHERS = {
    "a HEIC, an AVIF or a video": re.compile(rb".{4}ftyp", re.DOTALL),
    "a TIFF": re.compile(rb"II[*+]\0|MM\0[*+]"),
    "a JPEG 2000": re.compile(rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
    "an SVG or other XML": re.compile(rb"\s*<(\?xml|svg)"),
    "a PDF": re.compile(rb"%PDF-"),
}

# Pillow reads a picture's parts one by one: a million empty ones take seconds. It unpacks each of
# its colour profiles, of which 1 kB may be 1 MB; there should be one (PNG, 5.6), and the four
# letters may be among the pixels too.
FEW_READS = 10_000
BYTES_A_READ = 100
PROFILE, MOST_PROFILES = b"iCCP", 4


class Parts(io.BytesIO):
    """A file whose parts are read one by one, up to a number."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name
        self.left = FEW_READS + len(data) // BYTES_A_READ

    def read(self, size: int | None = -1) -> bytes:
        """Read on; raise BadPayload where that was done too often."""
        self.left -= 1
        if self.left < 0:
            raise BadPayload(f"`{self.name}` is a picture of too many parts", hint="save it again")
        return super().read(size)


def open_picture(data: bytes, name: str, expected: str) -> Image.Image:
    """Return a picture whose header Pillow has read."""
    if data.count(PROFILE) > MOST_PROFILES:
        raise BadPayload(
            f"`{name}` is a picture of more than one colour profile", hint="save it again"
        )
    try:
        # (That the runs of a BMP are single bytes is nothing special.)
        file = io.BytesIO(data) if data.startswith(b"BM") else Parts(data, name)
        return Image.open(file, formats=FORMATS)
    except (OSError, ValueError, SyntaxError) as error:
        if other := next((kind for kind, begin in OTHERS.items() if begin.match(data)), ""):
            raise BadPayload(
                f"`{name}` is {other}, which is not supported",
                hint="convert it, and send a JPEG, PNG, WebP, BMP or GIF picture",
            ) from error
        raise BadPayload(
            f"`{name}` is not a picture: {len(data)} bytes that begin with {data[:8]!r}",
            hint=expected,
        ) from error
