"""Requests in JSON lines: one a line in, one answer a line out, in order and in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

from clients.errors import DeadlineExceeded, InferenceError
from dispatcher.codecs.content_types import IN_MEMORY, PIECE, WIDE_MARKS, in_utf_16
from dispatcher.codecs.metadata import Envelope
from dispatcher.errors import BadBody
from dispatcher.execution.request import Ask, parsed, read_ask

# Of 25 MiB, 262 bytes for each. As many as fit there, of two bytes, keep a core busy for minutes.
MOST_LINES = 100_000


def spooled(stream: IO[bytes]) -> IO[bytes]:
    """Return a copy of a request's body, on disk where it is large.

    All of it is taken before the first answer goes out: NGINX need not send and receive at once.
    """
    copy: Any = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  it is handed on
    while piece := stream.read(PIECE):
        copy.write(piece)
    copy.seek(0)
    return copy  # type: ignore[no-any-return]


def read_lines(
    body: IO[bytes], envelope: Envelope, max_batch: int
) -> Iterator[Ask | InferenceError]:
    """Yield what each line asks, or why it cannot be read; empty lines are passed over.

    Raises:
        BadBody: it cannot be parted into lines.

    """
    with body:
        start = body.read(2)
        if start.startswith(WIDE_MARKS) or b"\0" in start:
            raise in_utf_16("body")
        body.seek(0)
        for number, line in enumerate(body):
            if number >= MOST_LINES:
                yield BadBody(
                    f"the body has more than {MOST_LINES:,} lines; the rest was not read",
                    hint="send them in several requests",
                )
                return
            if line.strip():
                try:
                    yield read_ask(parsed(line, envelope.budget.deadline()), envelope, max_batch)
                except (BadBody, DeadlineExceeded) as error:
                    yield error
