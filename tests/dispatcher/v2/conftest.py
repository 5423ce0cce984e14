"""The application in front of an HTTP server that answers as a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.asking import ADD
from tests.support.fake_triton import FakeTriton


@dataclass
class TritonsPort:
    """Triton's HTTP port.

    Args:
        port: its number.
        answer: returns status, headers and body for each request.
        came: method, path, headers and body of each request.

    """

    port: int = 0
    answer: Callable[[], tuple[int, dict[str, str], bytes]] = lambda: (200, {}, b'{"outputs": []}')
    came: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def triton() -> Iterator[TritonsPort]:
    state = TritonsPort()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.came.append((self.command, self.path, dict(self.headers), body))
            status, headers, content = state.answer()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            with suppress(OSError):  # the dispatcher has given up
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = answer  # noqa: N815  as the library wants it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        server.shutdown()


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton(
        {"add": lambda inputs: {"SUM": sum(inputs.values())}},  # type: ignore[dict-item]
        signatures={"add": ADD},
    )


@pytest.fixture
def client(triton: TritonsPort, server: FakeTriton, tmp_path: Path) -> FlaskClient:
    """The application; one request of a model runs at a time, and none waits."""
    settings = read_settings(
        {
            "SAGEMAKER_SAFE_PORT_RANGE": f"{triton.port}-{triton.port + 3}",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add",
            "MODEL_SERVER_MAX_BODY_MB": "1",
            "MODEL_SERVER_THREADS": "1",
            "MODEL_SERVER_QUEUE": "0",
        }
    )
    environment = Environment(server, tmp_path)
    return make_app(settings, Registry(), environment, quiet(server)).test_client()
