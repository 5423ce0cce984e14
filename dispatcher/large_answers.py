"""Large answers, which NGINX keeps until their callers have read them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from flask import Response, g

from dispatcher.codecs.error_responses import answer_inference_error
from dispatcher.codecs.json_request import LARGE_BODY
from dispatcher.errors import TooManyRequests
from dispatcher.observability.memory import RECEIVED_SHARE, lies_in_memory, total_memory


def room_made(kept: Path, response: Response) -> Response:
    """Return a response, or 429 where the answers in the folder `kept` leave no room for it."""
    # (Tensors are a list of pieces, whose length is in no header yet.)
    length = response.content_length or (response.is_sequence and sum(map(len, response.response)))
    if not g.record.reported and length > LARGE_BODY:
        try:
            check_room(kept, length)
        except TooManyRequests as error:
            return answer_inference_error(error)
    return response


def check_room(kept: Path, length: int) -> None:
    """Check that an answer may wait in a folder until its caller has read it; one alone may.

    Raises:
        TooManyRequests: those that wait there take too much memory, or disk.

    """
    held = 0
    for file in kept.glob("*"):
        with suppress(FileNotFoundError):  # read meanwhile
            held += file.stat().st_size
    if lies_in_memory(kept):
        room = total_memory() * RECEIVED_SHARE - held
    else:
        room = shutil.disk_usage(kept).free / 2
    if held and length > room:
        raise TooManyRequests(
            f"large answers of {held // 2**20} MiB wait until their callers have read them",
            hint="read answers sooner, and try again after Retry-After seconds",
        )
