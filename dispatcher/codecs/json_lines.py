"""Requests in JSON lines: one a line in, one answer a line out, in order and in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

from clients.errors import DeadlineExceeded, InferenceError
from dispatcher.codecs.content_types import CHUNK, MAX_IN_MEMORY, UTF_16_MARKS, utf_16_error
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import BadBody
from dispatcher.execution.request import ModelRequest, parse_object, read_model_request

# Of 25 MiB, 262 bytes for each. As many as fit there, of two bytes, keep a core busy for minutes.
MAX_LINES = 100_000


def spool(stream: IO[bytes]) -> IO[bytes]:
    """Return a copy of a request's body, on disk where it is large.

    All of it is taken before the first answer goes out: NGINX need not send and receive at once.
    """
    copy: Any = tempfile.SpooledTemporaryFile(MAX_IN_MEMORY)  # noqa: SIM115  it is handed on
    while piece := stream.read(CHUNK):
        copy.write(piece)
    copy.seek(0)
    return copy  # type: ignore[no-any-return]


def read_lines(
    body: IO[bytes], metadata: Metadata, max_batch: int
) -> Iterator[ModelRequest | InferenceError]:
    """Yield what each line asks, or why it cannot be read; empty lines are passed over.

    Raises:
        BadBody: it cannot be parted into lines.

    """
    with body:
        start = body.read(2)
        if start.startswith(UTF_16_MARKS) or b"\0" in start:
            raise utf_16_error("body")
        body.seek(0)
        for number, line in enumerate(body):
            if number >= MAX_LINES:
                yield BadBody(
                    f"the body has more than {MAX_LINES:,} lines; the rest was not read",
                    hint="send them in several requests",
                )
                return
            if line.strip():
                try:
                    yield read_model_request(
                        parse_object(line, metadata.time_limit.deadline()), metadata, max_batch
                    )
                except (BadBody, DeadlineExceeded) as error:
                    yield error
