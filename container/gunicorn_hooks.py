"""gunicorn's configuration, as far as its command line has no words for it."""

from __future__ import annotations

import threading
import time
from typing import Any

SIGN_S = 1.0


def post_fork(server: Any, worker: Any) -> None:  # noqa: ARG001  gunicorn's signature
    """Give signs of life while a worker is made: tokenizers and clients may take their time."""

    def give_signs() -> None:
        while not worker.booted:
            worker.notify()
            time.sleep(SIGN_S)

    threading.Thread(target=give_signs, daemon=True).start()
