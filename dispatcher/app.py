"""The web application: what is done before and after every request."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable
from http import HTTPStatus

from flask import Blueprint, Flask, Request, Response, g, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected

from dispatcher.auth.authorization import Authorizer
from dispatcher.codecs import error_responses
from dispatcher.errors import too_large
from dispatcher.observability.request_log import RequestRecord
from dispatcher.observability.telemetry import Telemetry

CHUNK = 2**16
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
REQUEST_ID_HEADERS = (INFERENCE_ID, "X-Request-Id")
VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # as in nginx.conf
KEY_ALONE = "X-Key-Alone"  # from NGINX, which asks before it receives a body
START_HEADER = "X-Request-Start"  # when NGINX had the whole request, in seconds since 1970


def create_app(
    max_body: int,
    longest_wait: float,
    telemetry: Telemetry,
    authorizer: Authorizer,
    routes: Iterable[Blueprint],
) -> Flask:
    """Return the web application.

    Args:
        max_body: the size of the largest request body, in bytes.
        longest_wait: the seconds for which NGINX waits for a web worker at most, on any route.
        telemetry: counts and logs every request.
        authorizer: checks API keys.
        routes: the routes of all subjects.

    """
    app = Flask(__name__, static_folder=None)
    # `/infer//resnet` is no path: a redirect would be HTML, and lead away from https.
    app.url_map.merge_slashes = False
    error_responses.register(app)
    for blueprint in routes:
        app.register_blueprint(blueprint)

    @app.before_request
    def begin() -> Response | None:
        since = request.headers.get(START_HEADER)
        queue = waited(since, longest_wait)
        # Only NGINX sends the header: the supervisor's own requests are not counted.
        record = telemetry.begin(
            request, request_id(request.headers), queue, counts=since is not None
        )
        g.record = record
        record.key = authorizer.check(request)
        if KEY_ALONE in request.headers:
            return Response(status=HTTPStatus.NO_CONTENT)
        length = request.content_length or 0
        if length > max_body:
            raise too_large(max_body, length)
        return None

    @app.after_request
    def finish(response: Response) -> Response:
        drain(request)
        record: RequestRecord = g.record
        response.headers.add("X-Request-Id", record.request_id)
        response.headers.add("Server-Timing", server_timing(record))
        status = response.status_code
        for_service = error_responses.for_hosting_service(record)
        if status >= HTTPStatus.BAD_REQUEST and for_service and KEY_ALONE not in request.headers:
            text = response.get_data(as_text=True)
            response.set_data(error_responses.hosting_service_error(status, text))
            response.status_code = error_responses.SERVICE_STATUS
            response.headers.update(error_responses.SERVICE_HEADERS)
        telemetry.finish(record, response)
        record.status = status  # the log and the metrics have the container's own status
        return response

    @app.teardown_request
    def close(_: BaseException | None) -> None:
        if unpacked := g.pop("unpacked", None):
            unpacked.close()

    return app


def waited(since: str | None, longest: float) -> float:
    """Return how many seconds a request has waited for this worker; 0 where that is not known.

    NGINX can only say what the clock showed, which may have been set since: a request that seems
    to have waited longer than NGINX does would be refused for that, and spoil the metrics.
    """
    try:
        queue = time.time() - float(since or "")
    except ValueError:
        return 0.0
    return queue if 0 <= queue <= longest else 0.0


def server_timing(record: RequestRecord) -> str:
    """Return the header Server-Timing: the phases of a request in milliseconds."""
    seconds = {"queue": record.queue}
    if record.s3:
        seconds["s3"] = record.s3
    if timings := record.timings:
        seconds |= timings.seconds
    return ", ".join(f"{name};dur={1000 * each:.1f}" for name, each in seconds.items())


def request_id(headers: Headers) -> str:
    """Return the caller's id for a request where it is fit for a log, else a new id."""
    for name in REQUEST_ID_HEADERS:
        if VALID_REQUEST_ID.fullmatch(given := headers.get(name, "")):
            return given
    return uuid.uuid4().hex


def drain(request: Request) -> None:
    """Read the rest of a body that was answered unread.

    Otherwise gunicorn closes the connection, and NGINX, which is still sending, reports an error.
    """
    try:
        while request.stream.read(CHUNK):
            pass
    except (OSError, ClientDisconnected):
        pass  # the caller is gone
