"""Reads a body by its Content-Type: one table, a reader per type."""

from __future__ import annotations

import codecs
import re
import tempfile
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import IO, Any, cast

from flask import Request, g
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.formparser import FormDataParser

from clients.request import Media
from clients.shown import brief
from dispatcher.ask import Ask, Asked, One, checked_length, parsed, read_json, version
from dispatcher.envelope import Envelope
from dispatcher.errors import BadBody, UnsupportedType, too_large
from dispatcher.settings import Settings

# What a program sends that was told nothing: `curl --data` says the second.
UNSAID = frozenset({"", "application/x-www-form-urlencoded"})
LINES = frozenset({"application/jsonlines", "application/x-ndjson", "application/x-jsonlines"})
BEGINS_AS_JSON = re.compile(rb"\s*[{\[]")
BYTE_ORDER_MARKS = (
    codecs.BOM_UTF8,
    codecs.BOM_UTF16_LE,  # as one of UTF-32 begins
    codecs.BOM_UTF16_BE,
    codecs.BOM_UTF32_BE,
)
# A JPEG, PNG, WebP, BMP or GIF. A text may begin with "BM", but has no zeros where a BMP has its
# second header's size.
BEGINS_AS_PICTURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|BM.{13}\0\0\0|GIF8[79]a", re.DOTALL
)

# A text's, in lower case, with the names that programs have for them; the first is what a caller is
# told. UTF-16 is left out: without a byte order mark .NET means one order by it, and RFC 2781 the
# other. (Python's own table of names keeps each unknown one that it is asked for.)
CHARSETS: Mapping[str, tuple[str, ...]] = {
    # A byte order mark is none of the text.
    "utf-8-sig": ("utf-8", "utf8", "utf-8-sig", "us-ascii", "ascii", "ansi-x3.4-1968", ""),
    "iso-8859-1": ("iso-8859-1", "iso8859-1", "latin-1", "latin1"),
    "windows-1252": ("windows-1252", "cp1252"),
}
CODECS = {name: codec for codec, names in CHARSETS.items() for name in names}
CHARSET = re.compile(r';\s*charset=(?:([^\s;,"]*)|"([^"]*)")\s*(?=;|$)', re.IGNORECASE)
PICTURE = re.compile(r"image/[^\s,]+")

IN_MEMORY = 2**20  # bytes of an unpacked or streamed body that are kept in memory, not on disk
PIECE = 2**16
GZIP = 31  # for zlib: the largest window, and gzip's header and trailer
MOST_MEMBERS = 4096
FORM_FIELDS = 100  # parts of a form besides its files
FIELDS = ("modelname", "modelversion", "parameters")
FILE = "file"  # a picture or a text: its caller did not say which


def read_body(request: Request, envelope: Envelope, settings: Settings) -> Asked:
    """Return what a request asks for.

    Raises:
        UnsupportedType: there is no reader for its type, or for that of a part of it.
        BadBody: it is not what its type says.

    """
    media_type = request.mimetype
    if media_type in UNSAID:
        media_type = sniffed(request)
    reader = READERS.get(media_type)
    if reader is None and PICTURE.fullmatch(media_type):
        reader = read_picture
    if reader is None:
        raise UnsupportedType(
            f"a body of type {media_type[:100] or 'nothing'} is not taken",
            hint=f"expected {', '.join(READERS)}, image/*, {', '.join(sorted(LINES))}",
        )
    return reader(request, envelope, settings)


def sniffed(request: Request) -> str:
    """Return the type of a body that does not say it: JSON, or a picture.

    Raises:
        UnsupportedType: it is neither.

    """
    body = request.get_data(cache=True)
    start = body[:32]
    if not start or start.startswith(BYTE_ORDER_MARKS) or BEGINS_AS_JSON.match(body):
        return "application/json"
    if BEGINS_AS_PICTURE.match(start):
        return "application/octet-stream"
    raise UnsupportedType(
        f"the body is neither JSON nor a picture: it begins with {start!r}",
        hint="say what it is with a Content-Type",
    )


def json_body(request: Request, envelope: Envelope, settings: Settings) -> Asked:
    return read_json(request.get_data(), envelope, settings.max_batch)


def read_picture(request: Request, envelope: Envelope, _: Settings) -> Asked:
    return media(Media("picture", request.get_data()), envelope)


def read_file(request: Request, envelope: Envelope, _: Settings) -> Asked:
    return media(Media(FILE, request.get_data()), envelope)


def read_text(request: Request, envelope: Envelope, _: Settings) -> Asked:
    return media(text_of(request.get_data(), request.content_type or ""), envelope)


def read_npy(request: Request, envelope: Envelope, _: Settings) -> Asked:
    return One(
        Ask(
            named(envelope, None),
            [{"npy": request.get_data()}],
            modelversion=version(envelope.modelversion or None),
            tensors=True,
        )
    )


def read_form(request: Request, envelope: Envelope, settings: Settings) -> Asked:
    """Read files and fields: `modelname`, `modelversion`, `parameters`; each file is an item.

    Raises:
        BadBody: it is no such form.

    """
    if not request.mimetype_params.get("boundary"):
        raise BadBody(
            "the form has no boundary in its Content-Type",
            hint="leave the header to the library that makes the form",
        )
    request.max_form_parts = settings.max_batch + FORM_FIELDS
    request.max_form_memory_size = IN_MEMORY
    request.parameter_storage_class = Parts
    # By itself it takes a form that it cannot read for an empty one.
    request.form_data_parser_class = partial(FormDataParser, silent=False)  # type: ignore[assignment]
    try:
        files = cast("Parts", request.files).in_order
    except ValueError as error:
        raise BadBody(
            f"the form cannot be read: {error}",
            hint="it is cut off, or its parts have another boundary than its Content-Type says",
        ) from error
    if named_as_fields := [name for name, _ in files if name in FIELDS]:
        raise BadBody(
            f"the form's field `{named_as_fields[0]}` came as a file",
            hint="send it as a field, without a file name",
        )
    fields: Mapping[str, str] = request.form
    if unknown := [name for name in fields if name not in FIELDS]:
        raise BadBody(
            f"the form has an unknown field {brief(unknown[0])}",
            hint=f"beside files it may have {', '.join(FIELDS)}; settings of the model go into "
            'parameters, such as {"top_k": 1}',
        )
    times = {name: len(values) for name, values in request.form.lists()}
    if repeated := [name for name in times if times[name] > 1]:
        raise BadBody(
            f"the form has the field `{repeated[0]}` {times[repeated[0]]} times",
            hint="each of a form's fields may come once",
        )
    checked_length(files, "files", settings.max_batch)
    try:
        text = fields.get("parameters", "{}")
        parameters = parsed(text.encode(), envelope.budget.deadline())
    except BadBody as error:
        raise BadBody(
            f"the form's field `parameters` is {brief(fields['parameters'])}",
            hint='expected a JSON object, such as {"top_k": 1}',
        ) from error
    return One(
        Ask(
            named(envelope, fields.get("modelname")),
            [part(file) for _, file in files],
            is_list=True,
            parameters=parameters,
            modelversion=version(fields.get("modelversion") or envelope.modelversion or None),
        )
    )


class Parts(MultiDict[str, Any]):
    """Parts of a form as they came, by name too: else those of one name stand together."""

    def __init__(self, pairs: Iterable[tuple[str, Any]] = ()) -> None:
        self.in_order = list(pairs)
        super().__init__(self.in_order)


def part(file: FileStorage) -> Media:
    """Return a file of a form.

    Raises:
        UnsupportedType: it is of a type that is not taken.
        BadBody: it is a text, and not in its character set.

    """
    content, media_type = file.stream.read(), file.mimetype
    if media_type == "text/plain":
        return text_of(content, file.content_type or "")
    if PICTURE.fullmatch(media_type):
        return Media("picture", content)
    # What a program sends that was told nothing: requests the first, curl and fetch the second.
    if media_type in {"", "application/octet-stream"} or BEGINS_AS_PICTURE.match(content):
        return Media(FILE, content)
    raise UnsupportedType(
        f"the form's file {brief(file.filename)} is of type {media_type[:100]}, which is not taken",
        hint="send a picture as image/*, a text as text/plain; JSON is a body of its own",
    )


def told(file: Media, taken: Container[str]) -> Media:
    """Return what a file is, where its caller did not say.

    Args:
        file: one that came as it is.
        taken: the kinds that the model takes.

    Raises:
        BadBody: it is to be a text, and is none.

    """
    if file.kind != FILE or not isinstance(file.content, bytes):
        return file
    picture = Media("picture", file.content)
    if BEGINS_AS_PICTURE.match(file.content):
        return picture
    if "text" not in taken:
        # Its author may read others than pictures from it.
        return picture if "picture" in taken else file
    try:
        return text_of(file.content)
    except BadBody:
        if "picture" in taken:
            return picture
        raise


def text_of(content: bytes, content_type: str = "") -> Media:
    """Return a text that came as it is.

    Args:
        content: its bytes.
        content_type: the header; nothing means UTF-8.

    Raises:
        UnsupportedType: its character set is none of `CHARSETS`, or cannot be read.
        BadBody: it is not in that.

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
    try:
        return Media("text", content.decode(codec))
    except UnicodeDecodeError as error:
        raise BadBody(
            f"the text is not {charset.upper() or 'UTF-8'}: {error}",
            hint="send it in UTF-8, or say what it is: text/plain; charset=iso-8859-1",
        ) from error


def media(content: Media, envelope: Envelope) -> One:
    modelversion = version(envelope.modelversion or None)
    return One(Ask(named(envelope, None), [content], modelversion=modelversion))


def named(envelope: Envelope, in_body: str | None) -> str:
    if not (name := envelope.modelname(in_body)):
        raise BadBody(
            "no model is named",
            hint="name it in the path (/infer/resnet), the query (?modelname=resnet) or the header "
            "X-Amzn-SageMaker-Custom-Attributes: modelname=resnet",
        )
    return name


READERS: Mapping[str, Callable[[Request, Envelope, Settings], Asked]] = {
    "application/json": json_body,
    "application/octet-stream": read_file,
    "text/plain": read_text,
    "multipart/form-data": read_form,
    "application/x-npy": read_npy,
}


def unpack(request: Request, limit: int) -> None:
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
    plain = g.unpacked = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  see app.py
    length = copy_unpacked(request.stream, plain, limit)
    request.environ["wsgi.input"] = plain
    request.environ["CONTENT_LENGTH"] = str(length)
    request.environ["wsgi.input_terminated"] = True
    del request.environ["HTTP_CONTENT_ENCODING"]
    # What the request has made of the packed one already.
    for made in ("stream", "content_length"):
        request.__dict__.pop(made, None)


def copy_unpacked(packed: IO[bytes], plain: IO[bytes], limit: int) -> int:
    """Write what `packed` holds to `plain`, and return how many bytes that were."""
    member, members, length = zlib.decompressobj(GZIP), 1, 0
    while piece := packed.read(PIECE):
        while piece:
            if member.eof:  # another one follows: RFC 1952, 2.2; or zeros, which are passed over
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                member, members = zlib.decompressobj(GZIP), members + 1
                if members > MOST_MEMBERS:  # an empty one takes time, and no byte of the limit
                    raise BadBody(f"the gzip body has more than {MOST_MEMBERS} members")
            try:
                out = member.decompress(piece, PIECE)
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
