"""Reads forms: files, and fields beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from clients.request import Media
from clients.tensors.quoting import brief
from dispatcher.codecs.json_request import (
    CHUNK,
    MAX_BATCH,
    MAX_IN_MEMORY,
    check_length,
    parse_object,
    parse_version,
)
from dispatcher.codecs.media import (
    IMAGE_SIGNATURE,
    NAMED,
    UNSPECIFIED_MEDIA,
    decode_text,
    text_media,
)
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadBody, UnsupportedType
from dispatcher.model_request import InferenceRequest, ModelRequest

MAX_FORM_FIELDS = 100  # parts of a form besides its files
FIELDS = ("modelname", "modelversion", "parameters")


def read_form(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read a form; each file is a payload of a list."""
    if not request.mimetype_params.get("boundary"):
        raise BadBody(
            "the form has no boundary in its Content-Type",
            hint="leave the header to the library that makes the form",
        )
    most = MAX_BATCH + MAX_FORM_FIELDS
    try:
        parts = form_parts(request, most)
    except RequestEntityTooLarge as error:
        raise RequestEntityTooLarge(
            f"the form has more than {most} parts, or parts without a file name that are larger "
            "than 1 MiB; send fewer, and a file with a file name"
        ) from error
    except ValueError as error:
        raise BadBody(
            f"the form cannot be read: {error}",
            hint="it is cut off, or its parts have another boundary than its Content-Type says",
        ) from error
    files = [one for one in parts if one.is_file]
    if named_as_fields := [one.name for one in files if one.name in FIELDS]:
        raise BadBody(
            f"the form's field `{named_as_fields[0]}` was sent as a file",
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
    check_length(files, "files", MAX_BATCH)
    try:
        text = fields.get("parameters", "{}")
        parameters = parse_object(text.encode(), metadata.time_limit.deadline())
    except BadBody as error:
        raise BadBody(
            f"the form's field `parameters` is {brief(fields['parameters'])}",
            hint='expected a JSON object, such as {"top_k": 1}',
        ) from error
    return ModelRequest(
        metadata.require_modelname(fields.get("modelname")),
        [part_media(file) for file in files],
        is_list=True,
        parameters=parameters,
        modelversion=parse_version(fields.get("modelversion") or metadata.modelversion or None),
    )


@dataclass
class FormPart:
    """A part of a form."""

    name: str  # of its field
    filename: str | None  # `None` where it has none
    content_type: str  # the header as it came; empty where there is none
    content: bytes = b""  # its bytes

    @property
    def media_type(self) -> str:
        """Its media type without parameters; empty where it has none."""
        return parse_options_header(self.content_type)[0].lower()

    @property
    def is_file(self) -> bool:
        """True for a file, whose name is optional (RFC 7578, 4.2)."""
        if self.filename is not None:
            return True
        is_text = self.media_type.startswith("text/") or not self.media_type
        return not is_text and self.name not in FIELDS


def form_parts(request: Request, most: int) -> list[FormPart]:
    """Return the parts of a form, in the order of the body.

    Werkzeug's own parser drops the type of a part without a file name.

    Raises ValueError: it is not a form.
    """
    boundary = request.mimetype_params["boundary"].encode("ascii")
    decoder = MultipartDecoder(boundary, MAX_IN_MEMORY, max_parts=most)
    parts: list[FormPart] = []
    pieces: list[bytes] = []
    in_fields = 0
    for received in chain(iter(partial(request.stream.read, CHUNK), b""), [None]):
        decoder.receive_data(received)
        while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
            if isinstance(event, Field | File):
                filename = event.filename if isinstance(event, File) else None
                content_type = event.headers.get("Content-Type", "")
                parts.append(FormPart(event.name or "", filename, content_type))
            elif isinstance(event, Data):
                pieces.append(event.data)
                in_fields += 0 if parts[-1].is_file else len(event.data)
                if in_fields > MAX_IN_MEMORY:
                    raise RequestEntityTooLarge
                if not event.more_data:
                    parts[-1].content = b"".join(pieces)
                    pieces.clear()
    return parts


def part_media(file: FormPart) -> Media:
    """Return a file of a form as a payload."""
    content, media_type = file.content, file.media_type
    if media_type == "text/plain":
        return text_media(content, file.content_type)
    for kind, named in NAMED.items():
        if named.fullmatch(media_type):
            return Media(kind, content)
    # The defaults of programs: the first of requests, the second of curl and fetch.
    if media_type in {"", "application/octet-stream"} or IMAGE_SIGNATURE.match(content):
        return Media(UNSPECIFIED_MEDIA, content)
    name = file.name if file.filename is None else file.filename
    refusal = UnsupportedType(
        f"the form's file {brief(name)} is of type {media_type[:100]}, which is not supported",
        hint="send a picture as image/*, a text as text/plain; JSON is a body of its own",
    )
    return Media(UNSPECIFIED_MEDIA, content, refusal=refusal)
