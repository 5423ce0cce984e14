"""The application with a model of two versions, in as many web workers as a test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Client, Environment
from clients.plugins.registry import Registry
from clients.triton.server import ModelState
from dispatcher.execution.admission import Admission
from dispatcher.rollout.guard import Guard
from dispatcher.rollout.outcomes import Outcomes
from dispatcher.rollout.rollouts import Rollouts
from dispatcher.rollout.shadow import Shadows
from dispatcher.settings import read_settings
from dispatcher.status.status import Status
from dispatcher.status.status_file import News
from dispatcher.telemetry.telemetry import Metrics, Telemetry
from dispatcher.wsgi import make_admission
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton


class Doubles(Client):
    """Answers with what the model makes of some numbers; it spoils what it is given."""

    modelname = "doubles"
    example = {"numbers": [1.0]}

    def inference(self, payload: Any) -> Any:
        numbers = self.numbers(payload, "numbers")
        payload.clear()
        return self.infer({"IN": numbers[None]})["OUT"][0].tolist()


def times(factor: float) -> Any:
    return lambda inputs: {"OUT": inputs["IN"] * factor}


class Side:
    """One web worker; several share a folder."""

    def __init__(self, folder: Path, second: Any, clock: Any = None) -> None:
        self.server = FakeTriton({"doubles": times(2), "doubles:2": second})
        environment = Environment(self.server, folder)
        registry = Registry({"doubles": Doubles(environment)})
        self.metrics = Metrics(registry.clients)
        settings = read_settings({})
        states = [ModelState("doubles", one, "READY") for one in "12"]
        status = lambda: Status(models=states)  # noqa: E731
        self.admission: Admission = make_admission(settings)
        kept = folder / "rollouts"
        news = News(folder / "news")
        self.rollouts = Rollouts(kept, registry, self.server, status, news)
        self.outcomes = Outcomes(kept, self.metrics)
        self.shadows = Shadows(self.outcomes, self.admission, 1, 10)
        self.guard = Guard(self.rollouts, self.outcomes, lambda: True)
        app = make_app(
            settings,
            registry,
            environment,
            quiet(self.server),
            self.admission,
            telemetry=Telemetry(self.metrics),
            rollouts=self.rollouts,
            shadows=self.shadows,
        )
        self.client: FlaskClient = app.test_client()

    def put(self, name: str = "doubles", **given: Any) -> None:
        self.rollouts.change(name, lambda plan: plan.changed(given, 7.0))

    def ask(self, identity: str = "", payload: Any = None, **body: Any) -> TestResponse:
        document = {"payload": payload or {"numbers": [1.0]}, **body}
        headers = {"X-Request-Id": identity} if identity else {}
        return self.client.post("/infer/doubles", json=document, headers=headers)

    def counts(self) -> Any:
        self.guard.look()
        entry = self.client.get("/models/doubles").json
        return entry and entry["rollout"] and entry["rollout"]["counts"]
