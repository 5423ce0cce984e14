"""What tests with threads of their own find in a queue."""

from __future__ import annotations

from queue import Empty, Queue, SimpleQueue
from typing import Any

NOT_S = 0.2  # what should not come is waited for no longer


def nothing_comes(queue: Queue[Any] | SimpleQueue[Any]) -> bool:
    """Whether nothing is put into a queue for a while."""
    try:
        queue.get(timeout=NOT_S)
    except Empty:
        return True
    return False
