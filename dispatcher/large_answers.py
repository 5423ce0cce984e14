"""Large answers, which NGINX keeps until their callers have read them."""

from __future__ import annotations

import shutil
from pathlib import Path

from flask import Response, g

from dispatcher.codecs.error_responses import answer_inference_error
from dispatcher.codecs.json_request import LARGE_BODY
from dispatcher.errors import TooManyRequests
from dispatcher.observability.memory import free_memory, lies_in_memory


def room_made(kept: Path, response: Response) -> Response:
    """Return a response, or 429 where the folder `kept` has no room for it."""
    # (Tensors are a list of pieces, whose length is in no header yet.)
    length = response.content_length or (response.is_sequence and sum(map(len, response.response)))
    if not g.record.reported and length > LARGE_BODY:
        try:
            check_room(kept, length)
        except TooManyRequests as error:
            return answer_inference_error(error)
    return response


def check_room(kept: Path, length: int) -> None:
    """Check that an answer may wait in a folder until its caller has read it.

    Raises:
        TooManyRequests: it takes more than half of the memory, or disk, that is free.

    """
    # NGINX has unlinked the files that it keeps, so they cannot be counted.
    free = shutil.disk_usage(kept).free
    if lies_in_memory(kept):
        free = min(free, free_memory())
    if length > free / 2:
        raise TooManyRequests(
            f"there is no room for an answer of {length // 2**20} MiB until its caller has read it",
            hint="read answers sooner, and try again after Retry-After seconds",
        )
