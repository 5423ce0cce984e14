"""The application, with a Triton that is a dictionary of functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.support.application import serve_built_in
from tests.support.asking import Noted, stand_in
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Double


@pytest.fixture
def server() -> FakeTriton:
    server = stand_in()
    server.models_run |= {"noted": dict, "double": dict}
    return server


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty one: what is loaded at run time goes here."""
    return tmp_path


@pytest.fixture
def client(server: FakeTriton, built_in: Registry, repository: Path) -> FlaskClient:
    settings = {
        "CORS_ORIGINS": "https://shop.example",
        "REQUIRED_MODELS": "resnet",
        "MODEL_SERVER_MAX_BODY_MB": "1",
    }
    environment = Environment(server, repository)
    return serve_built_in(built_in, environment, read_settings(settings), Noted, Double)
