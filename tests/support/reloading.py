"""A web worker without HTTP in between, whose clients are reloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import load_clients
from dispatcher.models.reload import Reloader, Try, find_fatal, news_of
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton

FINE: dict[str, Any] = {"broken": {}, "absent": {}}
SOURCE = """
from clients.base import Client

class {kind}(Client):
    modelname = "{name}"
    example = {{}}

    def inference(self, payload):
        return {result}
"""


def write(folder: Path, name: str, result: str, file: str = "", *, after: str = "") -> None:
    """Write a class, and what comes after it in its file."""
    path = folder / (file or f"{name}.py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(SOURCE.format(kind=name.title(), name=name, result=result) + after)


class Worker:
    """A web worker without HTTP in between; several share a RUN_DIR."""

    def __init__(self, folder: Path, trial: Try | None = None, **settings: str) -> None:
        self.settings = read_settings(
            {
                "CLIENTS_PATH": str(folder / "clients"),
                "RUN_DIR": str(folder),
                "MODEL_REPOSITORY": str(folder),  # holds no models, so no built-in clients
                "MODEL_SERVER_TIMEOUT": "300",
                "SAGEMAKER_SAFE_PORT_RANGE": "1-3",  # nobody is there
                **settings,
            }
        )
        self.server = FakeTriton()
        environment = Environment(self.server, self.settings.model_repository)
        news = news_of(self.settings)
        fatal = find_fatal(self.settings, trial) if trial else {}
        self.registry = load_clients(environment, self.settings.clients_path, fatal)
        self.renewed = 0
        self.reloader = Reloader(
            self.settings, self.registry, environment, news, self.server, self.count_renewal
        )
        self.app = make_app(
            self.settings, self.registry, environment, quiet(), reloader=self.reloader
        )

    def count_renewal(self) -> None:
        self.renewed += 1

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def ask(self, name: str) -> Any:
        body = json.dumps({"modelname": name, "payload": {}})
        answer = self.client().post("/invocations", data=body).json
        return answer.get("result", answer.get("error", {}).get("code"))

    def reload(self) -> Any:
        return self.client().post("/reload")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "clients", "kept", "'kept'")
    write(tmp_path / "clients", "mine", "'old'")
    return tmp_path
