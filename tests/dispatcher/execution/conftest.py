"""Clients that are slow or hang, and the web worker that serves them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest
from flask import Flask
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.execution.admission import Admission
from dispatcher.settings import Settings, read_settings
from dispatcher.wsgi import make_admission
from tests.conftest import PROJECT
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.slow_clients import Hangs, Left, Model, Slow


@pytest.fixture
def settings() -> Settings:
    return read_settings({"MODEL_SERVER_TIMEOUT": "2"})


@pytest.fixture
def admission(settings: Settings) -> Admission:
    return make_admission(settings)


@pytest.fixture
def app(settings: Settings, admission: Admission) -> Iterator[Flask]:
    Model.asked.clear()
    Hangs.free.clear()
    environment = Environment(FakeTriton(), PROJECT / "model_repository")
    clients = {c.modelname: c(environment) for c in (Slow, Hangs, Left)}
    registry = Registry(clients, aliases={"slowly": "slow"})
    yield make_app(settings, registry, environment, quiet(), admission)
    Hangs.free.set()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def pool(app: Flask) -> Iterator[Executor]:
    """Threads, for which nobody waits at the end."""
    made = ThreadPoolExecutor()
    yield made
    made.shutdown(wait=False)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()
