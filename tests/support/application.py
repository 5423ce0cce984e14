"""The web application with parts for tests: no prober at work, no other web workers, no keys."""

from __future__ import annotations

from flask import Flask

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.auth.api_keys import KeyFile
from dispatcher.execution.admission import Admission
from dispatcher.model_control.reload import Reloader, verdicts_of
from dispatcher.observability.metrics import Metrics
from dispatcher.observability.telemetry import Telemetry
from dispatcher.readiness.prober import Canary
from dispatcher.settings import Settings
from dispatcher.wsgi import assemble, make_admission
from tests.support.fake_triton import FakeTriton


class Prompt(Canary):
    """A prober that tries no model, and asks Triton for its models whenever it is asked."""

    def reasons(self) -> list[str]:
        self.list_models()
        return super().reasons()


def quiet(server: FakeTriton | None = None, *required: str) -> Canary:
    canary = Prompt(required, Registry(), server or FakeTriton(), 8, 8)
    canary.trials.clear()
    return canary


def make_app(
    settings: Settings,
    registry: Registry,
    environment: Environment,
    canary: Canary,
    admission: Admission | None = None,
    reloader: Reloader | None = None,
    telemetry: Telemetry | None = None,
    keys: KeyFile | None = None,
) -> Flask:
    """Return the application, with the usual parts where none are given."""
    admission = admission or make_admission(settings)
    return assemble(
        settings,
        registry,
        environment,
        canary,
        admission,
        reloader
        or Reloader(
            settings,
            registry,
            environment,
            verdicts_of(settings),
            admission.calls.reset_hanging,
        ),
        telemetry or Telemetry(Metrics(registry.clients)),
        keys,
    )
