"""The web application with parts for tests: no prober at work, no other web workers, no keys."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flask import Flask

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.auth.api_keys import KeyFile
from dispatcher.execution.admission import Admission
from dispatcher.models.reload import Reloader, news_of
from dispatcher.settings import Settings
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness
from dispatcher.telemetry.telemetry import Metrics, Telemetry
from dispatcher.wsgi import assemble, job_store, make_admission
from tests.support.fake_triton import FakeTriton


@dataclass(frozen=True)
class Prompt(Readiness):
    """Asks Triton whenever it is asked; its models are well, and were never probed."""

    probing: Prober = field(kw_only=True)

    def reasons(self) -> list[str]:
        self.probing.list_models()
        for probe in self.probing.probes.values():
            probe.result = replace(probe.result, reason="", tried_in=1)
        self.probing.publish()
        return super().reasons()

    def report(self, name: str) -> None:
        return None


def quiet(server: FakeTriton | None = None, *required: str) -> Readiness:
    prober = Prober(required, Registry(), server or FakeTriton(), 8, 8)
    return Prompt(prober.supervisor, prober.status, probing=prober)


def make_app(
    settings: Settings,
    registry: Registry,
    environment: Environment,
    readiness: Readiness,
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
        readiness,
        admission=admission,
        reloader=reloader
        or Reloader(settings, registry, environment, news_of(settings), environment.server),
        telemetry=telemetry or Telemetry(Metrics(registry.clients)),
        keys=keys,
        jobs=job_store(settings),
    )
