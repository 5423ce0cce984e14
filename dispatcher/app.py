"""The web application: its hooks, and the routes of the other files put together."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

from flask import Flask, Response, g, request
from flask.globals import app_ctx, request_ctx

from clients.base import Environment
from clients.registry import Registry
from dispatcher import errors
from dispatcher.admission import Admission
from dispatcher.canary import Canary
from dispatcher.catalogue import Catalogue
from dispatcher.dispatch import Dispatcher
from dispatcher.gate import Gate
from dispatcher.hosting import Hosting
from dispatcher.invocations import invocation_routes
from dispatcher.keys import KeyFile
from dispatcher.management import management_routes
from dispatcher.metrics import Metrics
from dispatcher.observer import Observer
from dispatcher.pages import page_routes
from dispatcher.reload import Reloader, verdicts_of
from dispatcher.scrape import metrics_routes
from dispatcher.settings import WANTED, Settings
from dispatcher.watch import allowance

PIECE = 2**16
REQUEST_IDS = ("X-Amzn-SageMaker-Inference-Id", "X-Request-Id")
STARTED = "X-Request-Start"  # when NGINX had the whole request, in seconds since 1970


def create_app(  # noqa: PLR0913, PLR0917  all that the application is put together from
    settings: Settings,
    registry: Registry,
    environment: Environment,
    renamed_config: Callable[[str, str], str],
    canary: Canary,
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
        canary: tries the required models; started by the caller.
        admission: whose turn it is, where the caller watches it.
        reloader: takes up clients, where the caller has started one.
        observer: is told of every request, where anybody wants to know.
        keys: those that may enter; everybody may where there are none.

    """
    app = Flask(__name__, static_folder=None)
    errors.register(app)
    server, repository = environment.server, environment.model_repository
    admission = admission or admission_of(settings)
    observer = observer or Observer(Metrics(registry.clients))
    gate = Gate(keys, management=settings.management_routes)
    patience = allowance(settings.client_timeout)
    dispatcher = Dispatcher(registry, environment, admission.calls, patience, canary.refuse)
    catalogue = Catalogue(registry, server, repository)
    hosting = Hosting(
        server,
        repository,
        settings.model_url_roots,
        renamed_config,
        settings.load_timeout,
        settings.run_dir and settings.run_dir / WANTED,
    )
    app.register_blueprint(invocation_routes(settings, dispatcher, admission, observer))
    reloader = reloader or Reloader(
        settings, registry, environment, verdicts_of(settings), admission.calls.forgive
    )
    app.register_blueprint(
        management_routes(settings, catalogue, hosting, canary, reloader, admission.management)
    )
    app.register_blueprint(page_routes(settings, registry))
    app.register_blueprint(metrics_routes(settings, observer.metrics, canary, keys))

    @app.before_request
    def begin() -> None:
        here, incoming = app_ctx.g, request_ctx.request
        here.started = time.monotonic()
        given = (incoming.headers.get(name, "") for name in REQUEST_IDS)
        cleaned = (re.sub(r"[^A-Za-z0-9._:-]", "", text)[:128] for text in given)
        here.request_id = next(filter(None, cleaned), "") or uuid.uuid4().hex
        try:
            here.queue = max(0.0, time.time() - float(incoming.headers[STARTED]))
        except (KeyError, ValueError):
            here.queue = 0.0
        # NGINX says when it began: what `serve` asks by itself is nobody's request.
        counts = STARTED in incoming.headers
        here.record = observer.begin(
            incoming, here.request_id, here.started - here.queue, counts=counts
        )
        here.record.key = gate.check(incoming)
        length = incoming.content_length or 0
        if length > settings.max_body:
            raise errors.too_large(settings.max_body, length)

    @app.after_request
    def finish(response: Response) -> Response:
        here = app_ctx.g
        drain()
        response.headers["X-Request-Id"] = here.request_id
        phases = {"queue": here.queue}
        if timings := here.get("timings"):
            phases |= {
                "decode": timings.decode,
                "inference": timings.inference,
                "postprocess": timings.postprocess,
            }
        response.headers["Server-Timing"] = ", ".join(
            f"{name};dur={1000 * seconds:.1f}" for name, seconds in phases.items()
        )
        observer.finish(here.record, response)
        return response

    @app.teardown_request
    def close(_: BaseException | None) -> None:
        if unpacked := g.pop("unpacked", None):
            unpacked.close()

    return app


def admission_of(settings: Settings) -> Admission:
    """Return who lets requests in, for one worker."""
    return Admission(settings.threads, settings.jobs_per_model, settings.queue, settings.max_body)


def drain() -> None:
    """Take what is left of a body that was answered unread.

    gunicorn closes the connection on it otherwise, and NGINX, which is still sending, takes that
    for a failure.
    """
    try:
        while request.stream.read(PIECE):
            pass
    except OSError:
        pass  # the caller is gone
