"""The application in front of an HTTP server that answers as a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.asking import ADD, add
from tests.support.fake_triton import FakeTriton
from tests.support.proxies import HttpAnswer, HttpRequest, http_server


@dataclass
class TritonsPort:
    """Triton's HTTP port: how it answers each request, and what came."""

    port: int = 0
    answer: Callable[[], HttpAnswer] = lambda: (200, {}, b'{"outputs": []}')
    came: list[HttpRequest] = field(default_factory=list)


@pytest.fixture
def triton() -> Iterator[TritonsPort]:
    state = TritonsPort()
    with http_server(lambda: state.answer(), state.came) as state.port:  # noqa: PLW0108  it changes
        yield state


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton({"add": add}, {"add": ADD})


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
