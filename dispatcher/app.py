"""The web application: its hooks, and the routes of the other files put together."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from flask import Flask, Request, Response, g, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected

from clients.base import Environment
from clients.plugins.registry import Registry
from clients.repository.model_folders import available
from dispatcher import errors
from dispatcher.auth.api_keys import KeyFile
from dispatcher.auth.authorization import Gate
from dispatcher.execution.admission import Admission
from dispatcher.execution.executor import Dispatcher
from dispatcher.execution.watchdog import allowance
from dispatcher.model_control.listing import Catalogue
from dispatcher.model_control.load_unload import Hosting
from dispatcher.model_control.reload import Reloader
from dispatcher.model_control.verdicts import verdicts_of
from dispatcher.observability.metrics import Metrics
from dispatcher.observability.observer import Observer
from dispatcher.observability.record import Record
from dispatcher.observability.request_log import FIRST_ERROR
from dispatcher.readiness.status import Readiness
from dispatcher.routes.docs import page_routes
from dispatcher.routes.inference import invocation_routes
from dispatcher.routes.metrics import metrics_routes
from dispatcher.routes.models import management_routes
from dispatcher.settings import ENGINES, INSTANCES, MODELS, WANTED, Settings

log = logging.getLogger(__name__)

PIECE = 2**16
REQUEST_IDS = ("X-Amzn-SageMaker-Inference-Id", "X-Request-Id")
CLEAN = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # as in nginx.conf
STARTED = "X-Request-Start"  # when NGINX had the whole request, in seconds since 1970


def create_app(  # noqa: PLR0913, PLR0917  all that the application is put together from
    settings: Settings,
    registry: Registry,
    environment: Environment,
    renamed_config: Callable[[str, str], str],
    readiness: Readiness,
    admission: Admission | None = None,
    reloader: Reloader | None = None,
    observer: Observer | None = None,
    keys: KeyFile | None = None,
) -> Flask:
    """Return the web application.

    Args:
        settings: of the container.
        registry: the clients, made in this process.
        environment: what the clients were made with.
        renamed_config: returns a model's configuration under another name.
        readiness: whether the container and its models are ready.
        admission: whose turn it is, where the caller watches it.
        reloader: takes up clients, where the caller has started one.
        observer: is told of every request, where anybody wants to know.
        keys: those that may enter; everybody may where there are none.

    """
    app = Flask(__name__, static_folder=None)
    # `/infer//resnet` is no path: a redirect would be HTML, and lead away from https.
    app.url_map.merge_slashes = False
    errors.register(app)
    server, repository = environment.server, environment.model_repository
    admission = admission or admission_of(settings)
    observer = observer or Observer(Metrics(registry.clients))
    gate = Gate(keys, management=settings.management_routes)
    patience = allowance(settings.client_timeout)
    engines = settings.run_dir and settings.run_dir / INSTANCES / ENGINES
    catalogue = Catalogue(registry, server, repository, engines)
    hosting = Hosting(
        server,
        repository,
        settings.model_url_roots,
        renamed_config,
        settings.load_timeout,
        settings.run_dir and settings.run_dir / WANTED,
        settings.unload_timeout,
        partial(models_there, settings),
    )
    dispatcher = Dispatcher(
        registry, environment, admission.calls, patience, readiness.refuse, hosting.is_wanted
    )
    app.register_blueprint(invocation_routes(settings, dispatcher, admission, observer))
    reloader = reloader or Reloader(
        settings, registry, environment, verdicts_of(settings), admission.calls.forgive
    )
    app.register_blueprint(
        management_routes(settings, catalogue, hosting, readiness, reloader, admission.management)
    )
    app.register_blueprint(page_routes(settings, registry))
    app.register_blueprint(metrics_routes(settings, observer.metrics, readiness, keys, catalogue))

    @app.before_request
    def begin() -> None:
        since = request.headers.get(STARTED)
        try:
            queue = max(0.0, time.time() - float(since or ""))
        except ValueError:
            queue = 0.0
        # NGINX says when it began: what `serve` asks by itself is nobody's request.
        record = observer.begin(
            request, request_id(request.headers), queue, counts=since is not None
        )
        g.record = record
        record.key = gate.check(request)
        length = request.content_length or 0
        if length > settings.max_body:
            raise errors.too_large(settings.max_body, length)

    @app.after_request
    def finish(response: Response) -> Response:
        drain(request)
        record: Record = g.record
        response.headers.add("X-Request-Id", record.request_id)
        phases = f"queue;dur={1000 * record.queue:.1f}"
        if timings := record.timings:
            phases += (
                f", decode;dur={1000 * timings.decode:.1f}"
                f", inference;dur={1000 * timings.inference:.1f}"
                f", postprocess;dur={1000 * timings.postprocess:.1f}"
            )
        response.headers.add("Server-Timing", phases)
        status = response.status_code
        called = record.method == "POST" and record.path.startswith(errors.SERVICE)
        if called and status >= FIRST_ERROR:
            response.set_data(errors.of_service(status, response.get_data(as_text=True)))
            response.status_code = errors.SERVICE_STATUS
            response.headers.update(errors.SERVICE_HEADERS)
        observer.finish(record, response)
        record.status = status  # in the log and the metrics the container's own, as there
        return response

    @app.teardown_request
    def close(_: BaseException | None) -> None:
        if unpacked := g.pop("unpacked", None):
            unpacked.close()

    return app


def models_there(settings: Settings) -> Mapping[str, Path]:
    """Return the folders in MODEL_DIR and MODEL_REPOSITORY that are models now, by name."""
    if settings.run_dir is None:  # the repository is no folder of links
        return {}
    try:
        return available(
            settings.mounted,
            (settings.run_dir / MODELS).resolve(),
            instead=settings.model_dir_use == "instead",
        )
    except OSError as error:  # one of the two is gone, or cannot be read just now
        log.warning("models that were added cannot be looked for: %s", error)
        return {}


def admission_of(settings: Settings) -> Admission:
    """Return who lets requests in, for one worker."""
    return Admission(settings.threads, settings.jobs_per_model, settings.queue, settings.max_body)


def request_id(headers: Headers) -> str:
    """Return what a request calls itself, where a log can hold it, or a name for it."""
    for name in REQUEST_IDS:
        if CLEAN.fullmatch(said := headers.get(name, "")):
            return said
    return uuid.uuid4().hex


def drain(request: Request) -> None:
    """Take what is left of a body that was answered unread.

    gunicorn closes the connection on it otherwise, and NGINX, which is still sending, takes that
    for a failure.
    """
    try:
        while request.stream.read(PIECE):
            pass
    except (OSError, ClientDisconnected):
        pass  # the caller is gone
