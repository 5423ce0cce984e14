"""The application with the ready-made models and two clients for tests."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.answers import Raises
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Double, bert, resnet, yolov5


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton(
        {"resnet": resnet, "yolov5": yolov5, "bert_base": bert, "double": dict, "raises": dict}
    )


@pytest.fixture
def client(server: FakeTriton, built_in: Registry) -> FlaskClient:
    environment = Environment(server, PROJECT / "model_repository")
    for one in built_in.clients.values():
        one._environment = environment
    registry = Registry(
        {**built_in.clients, "double": Double(environment), "raises": Raises(environment)},
        {"broken": "Broken in /x/broken.py: it lacks the method inference(self, payload)"},
    )
    settings = read_settings({"REQUIRED_MODELS": "resnet,yolov5", "MODEL_SERVER_MAX_BODY_MB": "1"})
    readiness = quiet(server, *settings.required_models)
    return make_app(settings, registry, environment, readiness).test_client()
