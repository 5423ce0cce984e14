"""The web application with parts for tests: no prober at work, no other web workers, no keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from flask import Flask
from flask.testing import FlaskClient

from clients.base import Client, Environment
from clients.plugins.registry import Registry, load_clients
from dispatcher.auth.api_keys import KeyFile
from dispatcher.execution.admission import Admission
from dispatcher.execution.watchdog import Watchdog, replace_worker
from dispatcher.jobs.runner import Runner
from dispatcher.models.reload import Reloader, news_of
from dispatcher.rollout.outcomes import Outcomes
from dispatcher.rollout.rollouts import FOLDER, Rollouts
from dispatcher.rollout.shadow import Shadows
from dispatcher.settings import Settings, read_settings
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness
from dispatcher.telemetry.telemetry import Metrics, Telemetry
from dispatcher.wsgi import (
    assemble,
    configure_logging,
    job_store,
    load_key_file,
    make_admission,
    make_telemetry,
)
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


def serve_clients(
    server: FakeTriton,
    own: Sequence[type[Client]],
    get_readiness: Callable[[Registry], Readiness],
    repository: Path | None = None,
) -> Flask:
    """Return the application as `dispatcher.wsgi` makes it, by its variables; for gunicorn.

    With a repository there are the families of the project's models too.
    """
    settings = read_settings(os.environ)
    environment = Environment(server, repository or settings.model_repository)
    families = load_clients(environment).clients if repository else {}
    aliases = {alias: one.modelname for one in own for alias in one.aliases}
    made = {one.modelname: one(environment) for one in own}
    registry = Registry({**families, **made}, aliases=aliases)
    configure_logging(settings)
    admission, telemetry = make_admission(settings), make_telemetry(settings, registry, os.environ)
    note = telemetry.metrics.note_saturation
    Watchdog(admission, settings.client_timeout, replace_worker, note=note).start()
    app = make_app(
        settings,
        registry,
        environment,
        get_readiness(registry),
        admission,
        telemetry=telemetry,
        keys=load_key_file(settings),
    )
    if jobs := job_store(settings):
        Runner(jobs, app.wsgi_app, admission, lambda: False).start()
    return app


def make_app(
    settings: Settings,
    registry: Registry,
    environment: Environment,
    readiness: Readiness,
    admission: Admission | None = None,
    reloader: Reloader | None = None,
    telemetry: Telemetry | None = None,
    keys: KeyFile | None = None,
    rollouts: Rollouts | None = None,
    shadows: Shadows | None = None,
) -> Flask:
    """Return the application, with the usual parts where none are given."""
    admission = admission or make_admission(settings)
    telemetry = telemetry or Telemetry(Metrics(registry.clients))
    news = (reloader or rollouts).news if reloader or rollouts else news_of(settings)
    kept = news.path.with_name(FOLDER)
    return assemble(
        settings,
        registry,
        environment,
        readiness,
        admission=admission,
        reloader=reloader or Reloader(settings, registry, environment, news, environment.server),
        telemetry=telemetry,
        keys=keys,
        jobs=job_store(settings),
        rollouts=rollouts or Rollouts(kept, registry, environment.server, readiness.prober, news),
        shadows=shadows or Shadows(Outcomes(kept, telemetry.metrics), admission, 1, 10),
    )


def serve_built_in(
    built_in: Registry, environment: Environment, settings: Settings, *own: type[Client]
) -> FlaskClient:
    """Return the application with the ready-made models, made once, and a test's own classes."""
    for one in built_in.clients.values():
        one._environment = environment
    mine = {one.modelname: one(environment) for one in own}
    registry = Registry({**built_in.clients, **mine})
    readiness = quiet(cast(FakeTriton, environment.server), *settings.required_models)
    return make_app(settings, registry, environment, readiness).test_client()
