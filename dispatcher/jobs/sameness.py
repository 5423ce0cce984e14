"""What a request asks for, as a digest: the same for a repeated one, however it is packed.

Clients that repeat a request make another boundary for its form, another time in its gzip, another
order of JSON's fields, or name the character set that is meant anyway.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import IO, Any

from flask import Request

from dispatcher.codecs.content_types import content_encoding, decompress
from dispatcher.codecs.json_request import CHUNK, LARGE_BODY
from dispatcher.codecs.media import CODECS
from dispatcher.codecs.metadata import Metadata
from dispatcher.codecs.responses import JSON


def digest_of(request: Request, metadata: Metadata, body: IO[bytes], limit: int) -> str:
    """Return the digest of what a request asks for.

    Args:
        request: its headers count as far as the answer depends on them.
        metadata: of the request.
        body: as it came.
        limit: of the uncompressed body, in bytes.

    Raises:
        InferenceError: its content encoding is not known, or the body is not of it.
        werkzeug's RequestEntityTooLarge: the uncompressed body is larger.

    """
    options = {k: v for k, v in request.mimetype_params.items() if k not in {"boundary", "charset"}}
    charset = request.mimetype_params.get("charset", "").lower()
    if request.mimetype == "text/plain":  # no other reader looks at it
        options["charset"] = CODECS.get(charset.replace("_", "-")) or charset
    said = [
        metadata.path_model,
        metadata.other_model,
        metadata.modelversion,
        metadata.texts,
        "".join(metadata.accept.lower().split()),
        request.mimetype,
        options,
    ]
    content = Content(
        request.mimetype_params.get("boundary", "").encode(), request.mimetype == JSON
    )
    if encoding := content_encoding(request):
        decompress(body, content.write, limit, encoding)
    else:
        while piece := body.read(CHUNK):
            content.write(piece)
    text = json.dumps([said, content.digest()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Content:
    """Hashes a body: a small one of JSON by what it says, a form without its boundary.

    Args:
        boundary: of a form; else empty.
        is_json: whether it is of JSON.

    """

    def __init__(self, boundary: bytes, is_json: bool) -> None:
        self.boundary, self.text = boundary, bytearray() if is_json else None
        self.part, self.parts, self.left = hashlib.sha256(), list[str](), b""

    def write(self, piece: bytes) -> None:
        if self.text is not None:
            self.text += piece
            if len(self.text) > LARGE_BODY:
                self.text = None
        if self.boundary:
            *ended, piece = (self.left + piece).split(self.boundary)
            for one in ended:
                self.part.update(one)
                self.parts.append(self.part.hexdigest())
                self.part = hashlib.sha256()
            cut = max(0, len(piece) - len(self.boundary) + 1)
            self.left, piece = piece[cut:], piece[:cut]
        self.part.update(piece)

    def digest(self) -> Any:
        """Return what is the same for the same body."""
        if self.text is not None:
            with suppress(ValueError, RecursionError):
                return json.dumps(json.loads(self.text), sort_keys=True)
        self.part.update(self.left)
        return [*self.parts, self.part.hexdigest()]
