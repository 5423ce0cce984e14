"""The composition root of a web worker; gunicorn runs `build`."""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from flask import Flask

from backends.machine.cpu_share import usable_cpus
from clients.images.pictures import room
from clients.plugins.registry import Registry, load_clients
from clients.triton.client import TritonEnvironment
from clients.triton.configuration import rename_config
from clients.triton.server import ModelServer, ModelState
from clients.triton.shared_memory import affordable
from dispatcher.app import START_HEADER, create_app
from dispatcher.auth.api_keys import KeyFile, KeyLimits
from dispatcher.auth.authorization import Authorizer
from dispatcher.execution.admission import Admission
from dispatcher.execution.executor import Executor
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.watchdog import Watchdog, grace_period, replace_worker
from dispatcher.jobs.runner import Runner
from dispatcher.jobs.store import JobStore
from dispatcher.log_lines import find_descriptor
from dispatcher.models.control import ModelControl
from dispatcher.models.links import link_repair
from dispatcher.models.listing import ModelListing
from dispatcher.models.load_unload import ModelLoader
from dispatcher.models.model_files import Explainer, check_findings
from dispatcher.models.on_demand.loading import LoadingServer, OnDemand
from dispatcher.models.on_demand.memory import ModelMemory
from dispatcher.models.reload import Reloader, find_fatal, news_of
from dispatcher.models.repository import models_on_disk
from dispatcher.models.sandbox import environment_of
from dispatcher.rollout.capture import Capture
from dispatcher.rollout.capture_files import CaptureFiles
from dispatcher.rollout.captured_request import CapturedLines
from dispatcher.rollout.guard import Guard
from dispatcher.rollout.outcomes import Outcomes
from dispatcher.rollout.rollouts import FOLDER, Rollouts
from dispatcher.rollout.shadow import Shadows
from dispatcher.routes.inference import InferenceHandler, inference_routes
from dispatcher.routes.jobs import Later, job_routes
from dispatcher.routes.metrics import metrics_routes
from dispatcher.routes.models import management_routes
from dispatcher.routes.openai import openai_routes
from dispatcher.routes.openapi import openapi_routes
from dispatcher.routes.page import page_routes
from dispatcher.routes.v2 import inference_of_v2, models_of_v2
from dispatcher.s3.remote_models import remote_models
from dispatcher.s3.step import Step
from dispatcher.settings import (
    ENGINES,
    INSTANCES,
    JOBS,
    KEY_LIMITS,
    SCARCE,
    SUPERVISOR,
    USED,
    WANTED,
    Settings,
    read_settings,
)
from dispatcher.settings.traces import name_service
from dispatcher.status.prober import Prober
from dispatcher.status.status import Readiness, SupervisorStatus
from dispatcher.status.status_file import StatusReader
from dispatcher.telemetry.memory import (
    BODIES_SHARE,
    free_memory,
    lies_in_memory,
    total_memory,
    trim_heap,
)
from dispatcher.telemetry.request_log import AccessLog, Lines, log_handler
from dispatcher.telemetry.telemetry import Metrics, Telemetry

log = logging.getLogger(__name__)

MAX_LARGE_BODIES = 8  # of the largest size, in a web worker
# Of the memory, and of what is free of it, for large pictures while they are decoded.
PICTURES_SHARE = 3 / 4
# How long a probed model may take before /ping is 503, unless it answers other requests.
PROBE_TIMEOUT_S = 8.0
# Soon after its load a model with a class or an example is asked that: it would be unloaded while
# it is tested.
MODEL_KEEP_S = 5.0


def build() -> Flask:
    """Build the application, once per worker, after the fork."""
    settings = read_settings(os.environ)
    configure_logging(settings)
    environment = environment_of(settings, share_memory(settings), scarce=SCARCE in os.environ)
    server = environment.server  # for those who load nothing by asking
    if settings.load_on_demand:
        environment = replace(environment, server=cast("ModelServer", LoadingServer(server)))
    news = news_of(settings)
    registry = load_clients(environment, settings.clients_path, find_fatal(settings))
    reloader = Reloader(settings, registry, environment, news, server)
    admission = make_admission(settings)
    limit_pictures(PICTURES_SHARE / settings.workers)
    telemetry = make_telemetry(settings, registry, os.environ)
    note = telemetry.metrics.note_saturation
    watchdog = Watchdog(admission, settings.client_timeout, replace_worker, note=note)
    watchdog.start()
    programs = settings.run_dir and settings.run_dir / SUPERVISOR
    supervisor = StatusReader(programs, lambda read: SupervisorStatus(**read), SupervisorStatus())
    repair_links = link_repair(settings)

    def tidy() -> None:
        rollouts.look()
        repair_links()
        news.follow()  # a worker may have no requests, and probe

    prober = Prober(
        settings.required_models,
        registry,
        server,
        settings.probe_interval,
        PROBE_TIMEOUT_S,
        supervisor,
        run_dir=settings.run_dir,
        load_timeout=settings.load_timeout,
        replace_workers=replace_worker,
        leaving=lambda: watchdog.leaving,
        tidy=tidy,
        elsewhere=bool(settings.triton_url),
        patience=settings.client_timeout,
        explain=explainer(settings),
        classes=not settings.load_on_demand,  # they might load one model after the other
    )
    kept = news.path.with_name(FOLDER)
    rollouts = Rollouts(kept, registry, server, prober.status, news)
    outcomes = Outcomes(kept, telemetry.metrics)
    cores = max(1, usable_cpus() // settings.workers)
    shadows = Shadows(outcomes, admission, cores, settings.client_timeout)
    shadows.start()
    Guard(rollouts, outcomes, lambda: prober.status.is_own).start()
    reloader.renewed = prober.forgive
    prober.start()
    keys = load_key_file(settings)
    readiness = Readiness(supervisor, prober.status)
    jobs = job_store(settings)
    app = assemble(
        settings,
        registry,
        environment,
        readiness,
        admission=admission,
        reloader=reloader,
        telemetry=telemetry,
        keys=keys,
        jobs=jobs,
        rollouts=rollouts,
        shadows=shadows,
    )
    if jobs:
        runner = Runner(jobs, app.wsgi_app, admission, lambda: watchdog.leaving)
        runner.start()
    return app


def build_alone() -> Flask:
    """Build the application for a place without NGINX, such as AWS Lambda."""
    app = build()
    inner = app.wsgi_app

    def began_now(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ[f"HTTP_{START_HEADER.upper().replace('-', '_')}"] = str(time.time())
        return inner(environ, start_response)

    app.wsgi_app = began_now  # type: ignore[method-assign]
    return app


def assemble(
    settings: Settings,
    registry: Registry,
    environment: TritonEnvironment,
    readiness: Readiness,
    *,
    admission: Admission,
    reloader: Reloader,
    telemetry: Telemetry,
    keys: KeyFile | None,
    jobs: JobStore | None,
    rollouts: Rollouts,
    shadows: Shadows,
) -> Flask:
    run_dir = settings.run_dir
    server, repository = environment.server, environment.model_repository
    loading = server if isinstance(server, LoadingServer) else LoadingServer(server)
    server = loading.server
    loader = ModelLoader(
        repository,
        settings.model_url_roots,
        rename_config,
        server,
        settings.load_timeout,
        run_dir and run_dir / WANTED,
        settings.unload_timeout,
        folders=partial(models_on_disk, settings),
        elsewhere=bool(settings.triton_url),
        findings=check_findings,
    )
    stores = remote_models(settings, log.info)
    control = ModelControl(loader, reloader, stores)
    lookup = ModelLookup(
        registry,
        environment,
        readiness.refuse,
        loader.is_wanted,
        follow=reloader.news.follow,
        rollouts=rollouts,
        shadows=shadows,
    )
    if settings.load_on_demand and run_dir:
        memory = model_memory(settings, run_dir, loader, registry, readiness.supervisor)
        control = on_demand = OnDemand(memory, loader, reloader, stores)
        loading.using, lookup.load = on_demand.using, on_demand.load_on_demand
        on_demand.start()
    control.refuse_reload = rollouts.refuse_reload
    engines = run_dir and run_dir / INSTANCES / ENGINES
    rollouts.count = shadows.outcomes.count
    listing = ModelListing(
        registry,
        server,
        repository,
        engines=engines,
        url=settings.triton_url or "",
        available=control.available,
        rollouts=rollouts,
    )
    telemetry.capture = make_capture(settings, registry, readiness, listing, telemetry.metrics)
    executor = Executor(lookup, admission.calls, grace_period(settings.client_timeout))
    environment.others.find = lookup.client
    s3 = Step(settings, admission.bodies) if settings.objects_are_read else None
    later = Later(jobs, settings, s3) if jobs else None
    inference = InferenceHandler(settings, executor, admission, telemetry, s3=s3, later=later)
    limits = KeyLimits((run_dir or Path(tempfile.gettempdir())) / KEY_LIMITS)
    origins, management = settings.cors_origins, settings.management_routes
    return create_app(
        settings,
        telemetry,
        Authorizer(keys, limits, registry.name, origins, management=management),
        (
            inference_routes(inference),
            job_routes(jobs),
            inference_of_v2(settings, inference, readiness),
            models_of_v2(settings, lookup, control, admission),
            openai_routes(inference, control.available if settings.load_on_demand else dict),
            management_routes(
                settings, listing, control, readiness, admission.management, rollouts=rollouts
            ),
            openapi_routes(settings, registry, readiness),
            page_routes(settings),
            metrics_routes(
                settings, telemetry.metrics, readiness, keys, listing, rollouts=rollouts
            ),
        ),
    )


def make_capture(
    settings: Settings,
    registry: Registry,
    readiness: Readiness,
    listing: ModelListing,
    metrics: Metrics,
) -> Callable[..., Any] | None:
    """Return what samples requests (CAPTURE_TO), and write them from now on; `None` for nothing."""
    if not settings.capture_to:
        return None

    def describe(model: str, version: str) -> dict[str, str]:
        if not (client := registry.clients.get(registry.name(model))):
            return {}
        served = client.served_by
        states = readiness.prober().models
        ready = [one.version for one in states if one.name == served and one.ready]
        found = version or max(ready, key=int, default="")
        noted = listing.engine(served, found) if found in ready else {}
        engine = {name: str(noted[name]) for name in ("engine", "precision") if name in noted}
        return engine | {"version": found, "compared_as": client.compared_as}

    lines = CapturedLines(settings.capture_payloads, settings.capture_hide, describe)
    capture = Capture(settings, lines, CaptureFiles.of(settings), metrics.capture)
    capture.start()
    return capture.begin


def model_memory(
    settings: Settings,
    run_dir: Path,
    loader: ModelLoader,
    registry: Registry,
    supervisor: Callable[[], SupervisorStatus],
) -> ModelMemory:
    names = settings.required_models

    def pinned() -> set[str]:
        clients = [registry.clients.get(registry.name(name)) for name in names]
        return {*names, *(client.served_by for client in clients if client)}

    return ModelMemory(
        run_dir / USED,
        loader,
        (settings.model_memory_mb or math.inf) * 2**20,
        settings.model_idle or math.inf,
        MODEL_KEEP_S,
        pinned=pinned,
        triton=lambda: supervisor().triton_pid,
    )


def limit_pictures(share: float) -> None:
    """Let this worker's large pictures take a share of the memory, and of what is free of it."""

    def fits(size: int) -> bool:
        if size <= free_memory() * share:
            return True
        trim_heap()  # which keeps what other pictures took
        return size <= free_memory() * share

    room.most, room.fits = total_memory() * share, fits


def job_store(settings: Settings) -> JobStore | None:
    """Return where jobs are kept; `None` where requests are answered at once only."""
    folder = settings.jobs_dir or (settings.run_dir and settings.run_dir / JOBS)
    if not (folder and settings.jobs_queue):
        return None
    disk = settings.jobs_disk_mb * 2**20
    if lies_in_memory(folder):
        disk = min(disk, int(total_memory() * BODIES_SHARE))
    return JobStore(folder, settings.jobs_queue, disk, settings.jobs_keep)


def make_admission(settings: Settings) -> Admission:
    """Return the limits of concurrency for one worker.

    There is room for one of the largest bodies. What JSON takes beyond its length is compared with
    the free memory before it is parsed.
    """
    room = max(settings.max_body, int(total_memory() * BODIES_SHARE) // settings.workers)
    bodies = min(MAX_LARGE_BODIES * settings.max_body, room)
    return Admission(settings.threads, settings.jobs_per_model, settings.queue, bodies)


def explainer(settings: Settings) -> Callable[[Iterable[ModelState]], None]:
    if settings.run_dir is None or settings.triton_url:  # Triton's own log says so
        return lambda _: None
    return Explainer(settings.run_dir / WANTED, settings.model_repository).look


def configure_logging(settings: Settings) -> None:
    """Log in the format and from the level that the settings name."""
    handler = log_handler(Lines(as_json=settings.log_format == "json"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.captureWarnings(capture=True)


def share_memory(settings: Settings) -> int:
    """Return how much shared memory this worker may use for large tensors, in bytes."""
    if settings.serverless or settings.triton_url:
        return 0
    return affordable(total_memory()) // settings.workers


def load_key_file(settings: Settings) -> KeyFile | None:
    """Return the API keys; `None` where none are needed.

    Raises BadKeys: the file has no usable keys.
    """
    if settings.api_keys_file is None:
        return None
    return KeyFile(settings.api_keys_file, settings.run_dir and settings.run_dir / "api-keys")


def make_telemetry(
    settings: Settings, registry: Registry, environment: Mapping[str, str]
) -> Telemetry:
    """Return the metrics, the log of requests and their traces, where there are any."""
    metrics = Metrics(registry.clients, environment, settings.workers)
    traces = None
    if settings.traces_url:
        # Imported only here: without traces nothing of OpenTelemetry is loaded.
        from dispatcher.telemetry.traces import Traces  # noqa: PLC0415

        traces = Traces(settings.traces_url, name_service(), metrics.registry)
    if settings.access_log == "off":
        return Telemetry(metrics, traces=traces)
    access_log = AccessLog(find_descriptor(), errors_only=settings.access_log == "errors")
    access_log.start()
    return Telemetry(metrics, access_log, traces)
