"""What a gunicorn worker runs: the one place where the web worker's parts are put together."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flask import Flask

from clients.plugins.registry import Registry, load_clients
from clients.triton.client import renamed_config
from clients.triton.regions import affordable
from dispatcher.app import admission_of, create_app
from dispatcher.auth.api_keys import KeyFile
from dispatcher.execution.admission import nothing
from dispatcher.execution.watchdog import Watch, replace_worker
from dispatcher.model_control.links import keep_listable
from dispatcher.model_control.reload import Reloader, tried_at_start
from dispatcher.model_control.sandbox import environment_of
from dispatcher.model_control.verdicts import verdicts_of
from dispatcher.observability.memory import all_memory
from dispatcher.observability.metrics import Metrics
from dispatcher.observability.multiprocess import gather_dead
from dispatcher.observability.observer import Observer
from dispatcher.observability.request_log import AccessLog, JsonLines
from dispatcher.readiness.prober import Prober
from dispatcher.readiness.status import Readiness
from dispatcher.readiness.supervisor_status import supervisor_status
from dispatcher.settings import ASIDE, SCARCE, Settings, read_settings


def build() -> Flask:
    """Return the application, made from the environment; called once per worker, after the fork."""
    settings = read_settings(os.environ)
    log_to_stderr(settings)
    environment = environment_of(settings, shared_bytes(settings), scarce=SCARCE in os.environ)
    verdicts = verdicts_of(settings)
    noted = tried_at_start(settings, verdicts)
    registry = load_clients(environment, settings.clients_path, noted.by_source)
    admission = admission_of(settings)
    watch = Watch(admission, settings.client_timeout, replace_worker)
    watch.start()
    supervisor = supervisor_status(settings.run_dir)
    prober = Prober(
        settings.required_models,
        registry,
        environment.server,
        settings.canary_interval,
        settings.canary_timeout,
        supervisor,
        run_dir=settings.run_dir,
        load_timeout=settings.load_timeout,
        replace_workers=replace_worker,
        leaving=lambda: watch.leaving,
        tidy=tidying(settings),
    )
    prober.start()

    def renewed() -> None:
        admission.calls.forgive()
        prober.forgive()

    reloader = Reloader(settings, registry, environment, verdicts, renewed)
    reloader.start(noted.number)
    observer = observer_of(settings, registry)
    return create_app(
        settings,
        registry,
        environment,
        renamed_config,
        Readiness(supervisor, prober.status),
        admission,
        reloader,
        observer,
        keys_of(settings),
    )


def tidying(settings: Settings) -> Callable[[], None]:
    """Return what sees to folders that were deleted, where the repository is one of links."""
    if settings.run_dir is None:
        return nothing
    return partial(keep_listable, settings.model_repository, settings.run_dir / ASIDE)


def log_to_stderr(settings: Settings) -> None:
    """Log as the settings say."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines()
        if settings.log_format == "json"
        else logging.Formatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


def shared_bytes(settings: Settings) -> int:
    """Return how much shared memory this worker may use for large tensors."""
    given = settings.tensors_shared_memory_mb
    return (affordable(all_memory()) if given is None else given * 2**20) // settings.workers


def keys_of(settings: Settings) -> KeyFile | None:
    """Return the API keys; `None` where there is to be none.

    Raises:
        BadKeys: there are none to be used.

    """
    if settings.api_keys_file is None:
        return None
    return KeyFile(settings.api_keys_file, settings.run_dir and settings.run_dir / "api-keys")


def observer_of(settings: Settings, registry: Registry) -> Observer:
    """Return what is told of every request."""
    # The library looked there when it was imported.
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder:
        try:
            gather_dead(Path(folder))
        except OSError as error:
            logging.getLogger(__name__).warning(
                "what dead workers have counted stays as it is: %s", error
            )
    metrics = Metrics(registry.clients, Path(folder) if folder else None)
    if settings.access_log == "off":
        return Observer(metrics)
    access_log = AccessLog(sys.stderr.fileno(), errors_only=settings.access_log == "errors")
    access_log.start()
    return Observer(metrics, access_log)
