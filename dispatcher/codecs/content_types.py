"""Reads a body by its Content-Type: one table, a reader per type."""

from __future__ import annotations

import codecs
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import IO

from flask import Request, g
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from clients.images.pictures import LINE_ENDS_TAKEN_OUT, lost_its_line_ends
from clients.request import Media
from clients.tensors.shown import brief
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadBody, UnsupportedType, too_large
from dispatcher.execution.request import (
    InferenceRequest,
    ModelRequest,
    SingleRequest,
    check_length,
    parse_object,
    parse_version,
    read_json,
)
from dispatcher.settings import Settings

# What a program sends that was told nothing: `curl --data` says the second.
UNSPECIFIED_TYPES = frozenset({"", "application/x-www-form-urlencoded"})
LINE_TYPES = frozenset({"application/jsonlines", "application/x-ndjson", "application/x-jsonlines"})
JSON_SIGNATURE = re.compile(rb"\s*[{\[]")
UTF_16_MARKS = (
    codecs.BOM_UTF16_LE,  # as one of UTF-32 begins
    codecs.BOM_UTF16_BE,
    codecs.BOM_UTF32_BE,
)
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, *UTF_16_MARKS)
# A JPEG, PNG, WebP, BMP or GIF. A text may begin with "BM", but has no zeros where a BMP has its
# second header's size.
IMAGE_SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|BM.{13}\0\0\0|GIF8[79]a", re.DOTALL
)

# A text's, in lower case, with the names that programs have for them; the first is what a caller is
# told. UTF-16 is left out: without a byte order mark .NET means one order by it, and RFC 2781 the
# other. (Python's own table of names keeps each unknown one that it is asked for.)
UTF_8 = "utf-8-sig"  # a byte order mark is none of the text
CHARSETS: Mapping[str, tuple[str, ...]] = {
    UTF_8: ("utf-8", "utf8", "utf-8-sig", "us-ascii", "ascii", "ansi-x3.4-1968", ""),
    "iso-8859-1": ("iso-8859-1", "iso8859-1", "latin-1", "latin1"),
    "windows-1252": ("windows-1252", "cp1252"),
}
CODECS = {name: codec for codec, names in CHARSETS.items() for name in names}
CHARSET = re.compile(r';\s*charset=(?:([^\s;,"]*)|"([^"]*)")\s*(?=;|$)', re.IGNORECASE)
PICTURE = re.compile(r"image/[^\s,]+")

MAX_IN_MEMORY = 2**20  # bytes of an unpacked or streamed body that are kept in memory, not on disk
CHUNK = 2**16
LINE_BREAK = re.compile(r"[\r\n]")
GZIP_WBITS = 31  # for zlib: the largest window, and gzip's header and trailer
MAX_GZIP_MEMBERS = 4096
MAX_FORM_FIELDS = 100  # parts of a form besides its files
FIELDS = ("modelname", "modelversion", "parameters")

# Types that are refused and often sent, with what to send in their place.
SUGGESTIONS: Mapping[str, str] = {
    "text/csv": "send a table of numbers as application/x-npy, or in application/json: "
    '{"inputs": [{"name", "shape", "datatype", "data"}]}; records that are answered one by one as '
    "application/jsonlines, a JSON object on each line",
    "application/vnd.sagemaker-triton.binary+json": "tensors in binary are not taken: send them in "
    'application/json, {"inputs": [{"name", "shape", "datatype", "data"}]} (binary_data=False for '
    "each input and output of tritonclient), or a single one as application/x-npy",
}
UNSPECIFIED_MEDIA = "file"  # a picture or a text: its caller did not say which


def read_body(request: Request, metadata: Metadata, settings: Settings) -> InferenceRequest:
    """Return what a request asks for.

    Raises:
        UnsupportedType: there is no reader for its type, or for that of a part of it.
        BadBody: it is not what its type says.

    """
    media_type = request.mimetype
    if media_type in UNSPECIFIED_TYPES:
        media_type = detect_type(request)
    reader = READERS.get(media_type)
    if reader is None and PICTURE.fullmatch(media_type):
        reader = read_picture
    if reader is None:
        expected = f"expected {', '.join(READERS)}, image/*, {', '.join(sorted(LINE_TYPES))}"
        raise UnsupportedType(
            f"a body of type {media_type[:100] or 'nothing'} is not taken",
            hint=SUGGESTIONS.get(media_type, expected),
        )
    return reader(request, metadata, settings)


def detect_type(request: Request) -> str:
    """Return the type of a body that does not say it: JSON, or a picture.

    Raises:
        UnsupportedType: it is neither.

    """
    body = request.get_data(cache=True)
    start = body[:32]
    if not start or start.startswith(BYTE_ORDER_MARKS) or JSON_SIGNATURE.match(body):
        return "application/json"
    if IMAGE_SIGNATURE.match(start):
        return "application/octet-stream"
    lost = lost_its_line_ends(body)
    raise UnsupportedType(
        f"the body is neither JSON nor a picture: it begins with {start!r}",
        hint=LINE_ENDS_TAKEN_OUT if lost else "say what it is with a Content-Type",
    )


def read_json_body(request: Request, metadata: Metadata, settings: Settings) -> InferenceRequest:
    return read_json(request.get_data(), metadata, settings.max_batch)


def read_picture(request: Request, metadata: Metadata, _: Settings) -> InferenceRequest:
    return media_request(Media("picture", request.get_data()), metadata)


def read_file(request: Request, metadata: Metadata, _: Settings) -> InferenceRequest:
    return media_request(Media(UNSPECIFIED_MEDIA, request.get_data()), metadata)


def read_text(request: Request, metadata: Metadata, _: Settings) -> InferenceRequest:
    """Read a text of one line.

    Raises:
        BadBody: it has several, which a batch transform job that joins its records sends as well.

    """
    text = decode_text(request.get_data(), request.content_type or "")
    if LINE_BREAK.search(text.strip()):
        raise BadBody(
            "the text has several lines, and may be one text or one on each line",
            hint='one text: send it as application/octet-stream in UTF-8, or as {"payload": '
            '{"text": …}} in application/json; several: such an object on each line of '
            "application/jsonlines",
        )
    return media_request(Media("text", text), metadata)


def read_npy(request: Request, metadata: Metadata, _: Settings) -> InferenceRequest:
    return SingleRequest(
        ModelRequest(
            require_modelname(metadata, None),
            [{"npy": request.get_data()}],
            modelversion=parse_version(metadata.modelversion or None),
            tensors=True,
        )
    )


def read_form(request: Request, metadata: Metadata, settings: Settings) -> InferenceRequest:
    """Read files and fields: `modelname`, `modelversion`, `parameters`; each file is an item.

    Raises:
        BadBody: it is no such form.

    """
    if not request.mimetype_params.get("boundary"):
        raise BadBody(
            "the form has no boundary in its Content-Type",
            hint="leave the header to the library that makes the form",
        )
    try:
        parts = form_parts(request, settings.max_batch + MAX_FORM_FIELDS)
    except ValueError as error:
        raise BadBody(
            f"the form cannot be read: {error}",
            hint="it is cut off, or its parts have another boundary than its Content-Type says",
        ) from error
    files = [one for one in parts if one.is_file]
    if named_as_fields := [one.name for one in files if one.name in FIELDS]:
        raise BadBody(
            f"the form's field `{named_as_fields[0]}` came as a file",
            hint="send it as a field, without a file name",
        )
    texts = [one for one in parts if not one.is_file]
    if unknown := [one.name for one in texts if one.name not in FIELDS]:
        raise BadBody(
            f"the form has an unknown field {brief(unknown[0])}",
            hint=f"send a file with a file name; beside files the form may have "
            f"{', '.join(FIELDS)}; settings of the model go into parameters, such as "
            '{"top_k": 1}',
        )
    fields = {one.name: decode_text(one.content, one.content_type) for one in texts}
    times = Counter(one.name for one in texts)
    if repeated := [name for name in times if times[name] > 1]:
        raise BadBody(
            f"the form has the field `{repeated[0]}` {times[repeated[0]]} times",
            hint="each of a form's fields may come once",
        )
    check_length(files, "files", settings.max_batch)
    try:
        text = fields.get("parameters", "{}")
        parameters = parse_object(text.encode(), metadata.time_limit.deadline())
    except BadBody as error:
        raise BadBody(
            f"the form's field `parameters` is {brief(fields['parameters'])}",
            hint='expected a JSON object, such as {"top_k": 1}',
        ) from error
    return SingleRequest(
        ModelRequest(
            require_modelname(metadata, fields.get("modelname")),
            [part_media(file) for file in files],
            is_list=True,
            parameters=parameters,
            modelversion=parse_version(fields.get("modelversion") or metadata.modelversion or None),
        )
    )


@dataclass
class Part:
    """A part of a form.

    Args:
        name: its field's.
        filename: `None` where it has none.
        content_type: the header as it came; nothing where there is none.
        content: its bytes.

    """

    name: str
    filename: str | None
    content_type: str
    content: bytes = b""

    @property
    def media_type(self) -> str:
        """What it says that it is, without parameters; nothing where it does not."""
        return parse_options_header(self.content_type)[0].lower()

    @property
    def is_file(self) -> bool:
        """Whether it is a file; its name may be left out (RFC 7578, 4.2)."""
        if self.filename is not None:
            return True
        is_text = self.media_type.startswith("text/") or not self.media_type
        return not is_text and self.name not in FIELDS


def form_parts(request: Request, most: int) -> list[Part]:
    """Return the parts of a form in the order in which they came.

    Werkzeug's own parser drops the type of a part without a file name.

    Raises:
        ValueError: it is no form.
        werkzeug's RequestEntityTooLarge: it has more parts, or its fields are too large.

    """
    boundary = request.mimetype_params["boundary"].encode("ascii")
    decoder = MultipartDecoder(boundary, MAX_IN_MEMORY, max_parts=most)
    parts: list[Part] = []
    pieces: list[bytes] = []
    in_fields = 0
    for received in chain(iter(partial(request.stream.read, CHUNK), b""), [None]):
        decoder.receive_data(received)
        while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
            if isinstance(event, Field | File):
                filename = event.filename if isinstance(event, File) else None
                content_type = event.headers.get("Content-Type", "")
                parts.append(Part(event.name or "", filename, content_type))
            elif isinstance(event, Data):
                pieces.append(event.data)
                in_fields += 0 if parts[-1].is_file else len(event.data)
                if in_fields > MAX_IN_MEMORY:
                    raise RequestEntityTooLarge(
                        "the form's parts without a file name are larger than 1 MiB; send a file "
                        "with a file name"
                    )
                if not event.more_data:
                    parts[-1].content = b"".join(pieces)
                    pieces.clear()
    return parts


def part_media(file: Part) -> Media:
    """Return a file of a form.

    Raises:
        UnsupportedType: it is of a type that is not taken.
        BadBody: it is a text, and not in its character set.

    """
    content, media_type = file.content, file.media_type
    if media_type == "text/plain":
        return Media("text", decode_text(content, file.content_type))
    if PICTURE.fullmatch(media_type) or READERS.get(media_type) is read_picture:
        return Media("picture", content)
    # What a program sends that was told nothing: requests the first, curl and fetch the second.
    if media_type in {"", "application/octet-stream"} or IMAGE_SIGNATURE.match(content):
        return Media(UNSPECIFIED_MEDIA, content)
    name = file.name if file.filename is None else file.filename
    raise UnsupportedType(
        f"the form's file {brief(name)} is of type {media_type[:100]}, which is not taken",
        hint="send a picture as image/*, a text as text/plain; JSON is a body of its own",
    )


def detect_media(file: Media, taken: Container[str]) -> Media:
    """Return what a file is, where its caller did not say.

    Args:
        file: one that came as it is.
        taken: the kinds that the model takes.

    Raises:
        BadBody: it is to be a text, and is none.

    """
    if file.kind != UNSPECIFIED_MEDIA or not isinstance(file.content, bytes):
        return file
    picture = Media("picture", file.content)
    if IMAGE_SIGNATURE.match(file.content):
        return picture
    if "text" not in taken:
        # Its author may read others than pictures from it.
        return picture if "picture" in taken else file
    try:
        return Media("text", decode_text(file.content))
    except BadBody:
        if "picture" in taken:
            return picture
        raise


def decode_text(content: bytes, content_type: str = "") -> str:
    """Return a text that came as it is, without its byte order mark.

    Args:
        content: its bytes.
        content_type: the header; nothing means UTF-8.

    Raises:
        UnsupportedType: its character set is none of `CHARSETS`, or cannot be read.
        BadBody: it is not in that, or in UTF-16.

    """
    said = ["".join(one).lower() for one in CHARSET.findall(content_type)]
    if content_type.lower().count("charset") != len(said[:1]):
        raise UnsupportedType(
            f"the charset of a text cannot be read: its type is {brief(content_type)}",
            hint="say it once, as in text/plain; charset=utf-8",
        )
    charset = "".join(said)
    codec = CODECS.get(charset.replace("_", "-"))
    if codec is None:
        taken = ", ".join(names[0] for names in CHARSETS.values())
        raise UnsupportedType(
            f"a text with charset {brief(charset)} is not taken",
            hint=f"send it in UTF-8; taken are {taken}",
        )
    if content.startswith(codecs.BOM_UTF8):
        codec = UTF_8  # an editor wrote the mark, and knew; who sends the file may not
    # A zero is a character of every charset here, and none that anybody writes; C ends texts by it.
    if content.startswith(UTF_16_MARKS) or b"\0" in content.rstrip(b"\0"):
        raise utf_16_error("text")
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        raise BadBody(
            f"the text is not {charset.upper() or 'UTF-8'}: {error}",
            hint="send it in UTF-8, or say what it is: text/plain; charset=iso-8859-1",
        ) from error


def utf_16_error(what: str) -> BadBody:
    """Return the error for what begins as no other charset does, or has zeros in it."""
    return BadBody(
        f"the {what} begins as UTF-16 or UTF-32 does, or has zeros between its characters",
        hint="send it in UTF-8",
    )


def media_request(content: Media, metadata: Metadata) -> SingleRequest:
    modelversion = parse_version(metadata.modelversion or None)
    return SingleRequest(
        ModelRequest(require_modelname(metadata, None), [content], modelversion=modelversion)
    )


def require_modelname(metadata: Metadata, in_body: str | None) -> str:
    if not (name := metadata.modelname(in_body)):
        raise BadBody(
            "no model is named",
            hint="name it in the path (/infer/resnet), the query (?modelname=resnet) or the header "
            "X-Amzn-SageMaker-Custom-Attributes: modelname=resnet",
        )
    return name


READERS: Mapping[str, Callable[[Request, Metadata, Settings], InferenceRequest]] = {
    "application/json": read_json_body,
    "application/octet-stream": read_file,
    "application/x-image": read_picture,  # as SageMaker's own algorithms for pictures call it
    "text/plain": read_text,
    "multipart/form-data": read_form,
    "application/x-npy": read_npy,
}


def decompress_body(request: Request, limit: int) -> None:
    """Put the plain body in the place of one that was packed with gzip.

    Args:
        request: whose stream is replaced.
        limit: the most bytes that may come out.

    Raises:
        UnsupportedType: it is packed otherwise.
        BadBody: it is no gzip.
        werkzeug's RequestEntityTooLarge: more comes out.

    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return
    if encoding not in {"gzip", "x-gzip"}:  # which mean the same: RFC 9110, 8.4.1.3
        raise UnsupportedType(
            f"a body with Content-Encoding {encoding[:40]!r} is not taken", hint="expected gzip"
        )
    plain = g.unpacked = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115  see app.py
    length = decompress(request.stream, plain, limit)
    request.environ["wsgi.input"] = plain
    request.environ["CONTENT_LENGTH"] = str(length)
    request.environ["wsgi.input_terminated"] = True
    del request.environ["HTTP_CONTENT_ENCODING"]
    # What the request has made of the packed one already.
    for made in ("stream", "content_length"):
        request.__dict__.pop(made, None)


def decompress(packed: IO[bytes], plain: IO[bytes], limit: int) -> int:
    """Write what `packed` holds to `plain`, and return how many bytes that were."""
    member, members, length = zlib.decompressobj(GZIP_WBITS), 1, 0
    while piece := packed.read(CHUNK):
        while piece:
            if member.eof:  # another one follows: RFC 1952, 2.2; or zeros, which are passed over
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                member, members = zlib.decompressobj(GZIP_WBITS), members + 1
                if members > MAX_GZIP_MEMBERS:  # an empty one takes time, and no byte of the limit
                    raise BadBody(f"the gzip body has more than {MAX_GZIP_MEMBERS} members")
            try:
                out = member.decompress(piece, CHUNK)
            except zlib.error as error:
                raise BadBody(f"the body is no gzip: {error}") from error
            length += len(out)
            if length > limit:
                raise too_large(limit)
            plain.write(out)
            piece = member.unconsumed_tail or member.unused_data
    if not member.eof:
        raise BadBody("the gzip body is cut off")
    plain.seek(0)
    return length
