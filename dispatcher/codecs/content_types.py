"""Reads a body by its Content-Type: one table, with a reader for each type."""

from __future__ import annotations

import re
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any

from flask import Request, g

from clients.base import Payload
from clients.errors import TooManyRequests
from clients.images.pictures import LINE_ENDS_TAKEN_OUT, lost_its_line_ends
from clients.request import Media, SentRows
from dispatcher.codecs.csv_rows import parse_rows
from dispatcher.codecs.forms import read_form
from dispatcher.codecs.json_request import (
    CHUNK,
    LARGE_BODY,
    MAX_IN_MEMORY,
    parse_version,
    read_json,
)
from dispatcher.codecs.media import (
    BYTE_ORDER_MARKS,
    IMAGE_SIGNATURE,
    NAMED,
    SOUND_SIGNATURE,
    UNSPECIFIED_MEDIA,
    decode_text,
    text_media,
)
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadBody, UnsupportedType, too_large
from dispatcher.model_request import InferenceRequest, ModelRequest

# What programs send by default; the second is that of `curl --data`.
UNSPECIFIED_TYPES = frozenset({"", "application/x-www-form-urlencoded"})
LINE_TYPES = frozenset({"application/jsonlines", "application/x-ndjson", "application/x-jsonlines"})
JSON_SIGNATURE = re.compile(rb"\s*[{\[]")
V2_INPUTS = re.compile(rb'"inputs"\s*:\s*\[')
LINE_BREAK = re.compile(r"[\r\n]")
# By content encoding (RFC 9110, 8.4.1), for zlib: the largest window, with the header and trailer
# of gzip, or with its own.
WBITS: Mapping[str, int] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
MAX_MEMBERS = 4096

HEADERS = {"present": True, "absent": False}  # RFC 4180, 3: the parameter `header` of text/csv


class LargeBodies:
    """The large bodies of a web worker, in memory and in files of their own: at most `most` bytes.

    A file may lie in memory too, and as lines of 28 kB can unpack to 25 MiB.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._lock = threading.Lock()

    def take(self, length: int) -> Callable[[], None]:
        """Count a body before it is read; return a function that releases it.

        Raises TooManyRequests: there is no room for it now.
        """
        if length <= LARGE_BODY:
            return lambda: None
        self.hold(length)
        return partial(self.hold, -length)

    def take_body(self, request: Request) -> Callable[[], None]:
        """Count a request's body, as `take` does; one that was unpacked is counted already."""
        return self.take(0 if "unpacked" in g else request.content_length or 0)

    def hold(self, length: int) -> None:
        """Count more bytes, or less; raise TooManyRequests where there is no room for them."""
        with self._lock:
            if length > 0 and self.held + length > self.most:
                raise TooManyRequests(
                    f"the large requests under way hold {self.held // 2**20} MiB already",
                    hint="try again after Retry-After seconds, with fewer at a time",
                )
            self.held += length


class BodyFile(tempfile.SpooledTemporaryFile[bytes]):
    """A body whose length is not known before it is read; on disk, and counted, where it is large.

    It is counted until `close` is called.
    """

    def __init__(self, bodies: LargeBodies) -> None:
        super().__init__(MAX_IN_MEMORY)
        self.bodies, self.counted = bodies, 0

    def write(self, piece: Any) -> int:
        more = self.tell() + len(piece) - self.counted
        if more > LARGE_BODY:
            self.bodies.hold(more)
            self.counted += more
        return super().write(piece)

    def close(self) -> None:
        super().close()
        self.bodies.hold(-self.counted)
        self.counted = 0


def read_body(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read the body of a request.

    Raises BadBody: it is not of its media type.
    """
    media_type = request.mimetype
    if media_type in UNSPECIFIED_TYPES:
        media_type = detect_type(request)
    return READERS.get(media_type, read_other)(request, metadata)


def detect_type(request: Request) -> str:
    """Detect the type of a body without one: JSON, a picture or a sound; empty for any other."""
    body = request.get_data(cache=True)
    start = body[:32]
    if not start or start.startswith(BYTE_ORDER_MARKS) or JSON_SIGNATURE.match(body):
        return "application/json"
    is_known = IMAGE_SIGNATURE.match(start) or SOUND_SIGNATURE.match(start)
    return "application/octet-stream" if is_known else ""


def read_other(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read a file of a type that has no reader: a picture, a sound, or any for a model of files."""
    body, media_type = request.get_data(), request.mimetype
    kind = next((kind for kind, its in NAMED.items() if its.fullmatch(media_type)), "")
    if kind:
        return ask(metadata, Media(kind, body))
    if media_type in UNSPECIFIED_TYPES:
        refusal = UnsupportedType(
            f"the body is neither JSON, a picture nor a sound: it begins with {body[:32]!r}",
            hint=LINE_ENDS_TAKEN_OUT
            if lost_its_line_ends(body)
            else "set the header Content-Type to its type, such as text/csv",
        )
        if not metadata.modelname(None):  # rather JSON that is not whole, which names it
            raise refusal
    else:
        expected = f"expected {', '.join(READERS)}, image/*, {', '.join(sorted(LINE_TYPES))}"
        refusal = UnsupportedType(
            f"a body of type {media_type[:100]} is not supported", hint=expected
        )
    return ask(metadata, Media(UNSPECIFIED_MEDIA, body, refusal=refusal))


def read_json_body(request: Request, metadata: Metadata) -> InferenceRequest:
    return read_json(request.get_data(), metadata)


def read_file(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read a file, or a V2 body in JSON, which callers of NVIDIA's image send as this type."""
    body = request.get_data()
    if JSON_SIGNATURE.match(body) and V2_INPUTS.search(body):
        return read_json_body(request, metadata)
    return ask(metadata, Media(UNSPECIFIED_MEDIA, request.get_data()))


def read_text(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read a text on one line; a batch transform job that joins its records sends several."""
    media = text_media(request.get_data(), request.content_type or "")
    if isinstance(media.content, str) and LINE_BREAK.search(media.content.strip()):
        refusal = BadBody(
            "the text has several lines, and may be one text or one on each line",
            hint='one text: send it as application/octet-stream in UTF-8, or as {"payload": '
            '{"text": …}} in application/json; several: such an object on each line of '
            "application/jsonlines",
        )
        media = Media(UNSPECIFIED_MEDIA, media.file, refusal=refusal)
    return ask(metadata, media)


def read_csv(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read rows of CSV, each a payload of a list."""
    rows = parse_rows(decode_text(request.get_data(), request.content_type or ""))
    header = HEADERS.get(request.mimetype_params.get("header", "").lower())
    return ask(metadata, SentRows(rows, header, file=request.get_data()), is_list=True)


def read_npy(request: Request, metadata: Metadata) -> InferenceRequest:
    return ask(metadata, {"npy": request.get_data()}, tensors=True)


def ask(metadata: Metadata, payload: Payload | Media | SentRows, **how: Any) -> ModelRequest:
    """Return a request whose body is one payload, and names no model."""
    version = parse_version(metadata.modelversion or None)
    return ModelRequest(metadata.require_modelname(), [payload], modelversion=version, **how)


READERS: Mapping[str, Callable[[Request, Metadata], InferenceRequest]] = {
    "application/json": read_json_body,
    "application/octet-stream": read_file,
    "text/plain": read_text,
    "text/csv": read_csv,
    "multipart/form-data": read_form,
    "application/x-npy": read_npy,
}


def decompress_body(request: Request, limit: int, bodies: LargeBodies) -> None:
    """Replace a body that is compressed with gzip or deflate by the uncompressed one.

    Raises TooManyRequests: there is no room for it now.
    Raises UnsupportedType: it has another content encoding.
    Raises BadBody: it is not what its content encoding says.
    Raises RequestEntityTooLarge: the uncompressed body is larger.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return
    if encoding not in WBITS:
        raise UnsupportedType(
            f"a body with Content-Encoding {encoding[:40]!r} is not supported",
            hint="expected gzip or deflate",
        )
    plain = g.unpacked = BodyFile(bodies)
    length = decompress(request.stream, plain.write, limit, encoding)
    plain.seek(0)
    request.environ["wsgi.input"] = plain
    request.environ["CONTENT_LENGTH"] = str(length)
    request.environ["wsgi.input_terminated"] = True
    del request.environ["HTTP_CONTENT_ENCODING"]
    # What the request has cached of the compressed body.
    for made in ("stream", "content_length"):
        request.__dict__.pop(made, None)


def decompress(
    packed: IO[bytes], write: Callable[[bytes], object], limit: int, encoding: str
) -> int:
    """Give what `packed` has, decompressed, to `write`; return the number of bytes."""
    member, members, length = zlib.decompressobj(WBITS[encoding]), 1, 0
    while piece := packed.read(CHUNK):
        while piece:
            if member.eof:  # another member follows (RFC 1952, 2.2), or zeros, which are skipped
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                member, members = zlib.decompressobj(WBITS[encoding]), members + 1
                if members > MAX_MEMBERS:  # empty members take time, but no bytes
                    raise BadBody(
                        f"the {encoding} body has more than {MAX_MEMBERS} members",
                        hint="compress the whole body at once",
                    )
            try:
                out = member.decompress(piece, CHUNK)
            except zlib.error as error:
                raise BadBody(f"the body is not {encoding}: {error}") from error
            length += len(out)
            if length > limit:
                raise too_large(limit)
            write(out)
            piece = member.unconsumed_tail or member.unused_data
    if not member.eof:
        raise BadBody(
            f"the {encoding} body is cut off", hint="send all of it, to the end of its compression"
        )
    return length
