"""What `serve` says of the outcome of a start."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from container import announcement
from container.announcement import Announcement
from tests.conftest import PATIENCE_S, wait_for


class Ping(BaseHTTPRequestHandler):
    status = 503
    gate = threading.Event()

    def do_GET(self) -> None:
        self.gate.wait(PATIENCE_S)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_nobody_waits_for_the_outcome_and_what_becomes_ready_late_is_said_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a slow machine, where a worker is stopped, or where a Triton elsewhere starts later."""
    monkeypatch.setattr(announcement, "CONNECT_S", 0.1)
    monkeypatch.setattr(announcement, "LATER_S", 0.1)
    monkeypatch.setattr(Ping, "status", 503)
    said: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Ping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        announce = Announcement(server.server_port, lambda text, *_: said.append(text))
        assert not announce(0.0), "a look may take 4 s"
        Ping.gate.set()
        wait_for(lambda: announce(0.5), "the outcome")
        assert [text.partition(",")[0] for text in said] == ["NOT ready"]
        Ping.status = 200
        wait_for(lambda: len(said) > 1, "that it is ready")
        server.shutdown()
    assert re.sub(r"\d+", "0", said[1]) == "ready after 0.0 s: POST http://0.0.0.0:0/invocations"
