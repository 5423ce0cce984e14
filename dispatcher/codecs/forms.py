"""Reads forms: files, and fields beside them."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any, cast

from flask import Request
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import MultiPartParser

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
from dispatcher.codecs.media import IMAGE_SIGNATURE, NAMED, UNSPECIFIED_MEDIA, text_media
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadBody, UnsupportedType
from dispatcher.model_request import InferenceRequest, ModelRequest

MAX_FORM_FIELDS = 100  # parts of a form besides its files
FIELDS = ("modelname", "modelversion", "parameters")
BYTE_ORDER_MARK = "\ufeff"


def read_form(request: Request, metadata: Metadata) -> InferenceRequest:
    """Read a form; each file is a payload of a list."""
    if not (boundary := request.mimetype_params.get("boundary")):
        raise BadBody(
            "the form has no boundary in its Content-Type",
            hint="leave the header to the library that makes the form",
        )
    most = MAX_BATCH + MAX_FORM_FIELDS
    # Both lists are in the order of the body, which a dictionary by the parts' names would lose.
    parser = cast("Any", MultiPartParser)(
        lambda **_: io.BytesIO(), MAX_IN_MEMORY, list, CHUNK, most
    )
    try:
        body, length = request.stream, request.content_length
        texts, files = parser.parse(body, boundary.encode("ascii"), length)
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
    if named_as_fields := [name for name, _ in files if name in FIELDS]:
        raise BadBody(
            f"the form's field `{named_as_fields[0]}` was sent as a file",
            hint="send it as a field, without a file name",
        )
    if unknown := [name for name, _ in texts if name not in FIELDS]:
        raise BadBody(
            f"the form has an unknown field {brief(unknown[0])}",
            hint=f"send a file with a file name; beside files the form may have "
            f"{', '.join(FIELDS)}; settings of the model go into parameters, such as "
            '{"top_k": 1}',
        )
    fields = {name: text.removeprefix(BYTE_ORDER_MARK) for name, text in texts}
    times = Counter(name for name, _ in texts)
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
        [part_media(file) for _, file in files],
        is_list=True,
        parameters=parameters,
        modelversion=parse_version(fields.get("modelversion") or metadata.modelversion or None),
    )


def part_media(file: FileStorage) -> Media:
    content, media_type = file.read(), file.mimetype
    if media_type == "text/plain":
        return text_media(content, file.content_type or "")
    for kind, named in NAMED.items():
        if named.fullmatch(media_type):
            return Media(kind, content)
    # The defaults of programs: the first of requests, the second of curl and fetch.
    if media_type in {"", "application/octet-stream"} or IMAGE_SIGNATURE.match(content):
        return Media(UNSPECIFIED_MEDIA, content)
    refusal = UnsupportedType(
        f"the form's file {brief(file.filename)} is of type {media_type[:100]}, which is not "
        "supported",
        hint="send a picture as image/*, a text as text/plain; JSON is a body of its own",
    )
    return Media(UNSPECIFIED_MEDIA, content, refusal=refusal)
