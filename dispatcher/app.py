"""The web application: what is done before and after every request."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path

from flask import Blueprint, Flask, Request, Response, g, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import ClientDisconnected

from clients.errors import TooManyRequests
from dispatcher.auth.authorization import KEY_ALONE, Authorizer
from dispatcher.codecs import error_responses
from dispatcher.codecs.json_request import CHUNK, LARGE_BODY
from dispatcher.codecs.metadata import INFERENCE_ID
from dispatcher.errors import too_large
from dispatcher.execution.slots import Caller
from dispatcher.rollout.plan import CANARY
from dispatcher.settings import Settings
from dispatcher.telemetry.memory import free_memory, lies_in_memory
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.telemetry.telemetry import Telemetry

REQUEST_ID_HEADERS = (INFERENCE_ID, "X-Request-Id")
VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # as in nginx.conf
START_HEADER = "X-Request-Start"  # when NGINX had the whole request, in seconds since 1970


def create_app(
    settings: Settings, telemetry: Telemetry, authorizer: Authorizer, routes: Iterable[Blueprint]
) -> Flask:
    max_body, longest_wait, kept = settings.max_body, settings.managing_timeout, settings.run_dir
    app = Flask(__name__, static_folder=None)
    # `/infer//resnet` is no path: a redirect would be HTML, and lead away from https.
    app.url_map.merge_slashes = False
    error_responses.register(app)
    for blueprint in routes:
        app.register_blueprint(blueprint)

    @app.before_request
    def begin() -> Response | None:
        since = request.headers.get(START_HEADER)
        queue = measure_wait(since, longest_wait)
        # Only NGINX sends the header: the supervisor's own requests are not counted.
        record = telemetry.begin(
            request, request_id(request.headers), queue, counts=since is not None
        )
        g.record, g.caller = record, Caller(request.environ.get("gunicorn.socket"))
        g.held = authorizer.admit(request, record)
        if KEY_ALONE in request.headers:
            return Response(status=HTTPStatus.NO_CONTENT)
        length = request.content_length or 0
        if length > max_body:
            raise too_large(max_body, length)
        return None

    @app.after_request
    def finish(response: Response) -> Response:
        drain(request)
        response = room_made(kept, response)
        if held := g.get("held"):
            response.call_on_close(held.close)
        record: RequestRecord = g.record
        response.headers.extend(own_headers(record))
        status = response.status_code
        failed = status >= HTTPStatus.BAD_REQUEST and KEY_ALONE not in request.headers
        if failed and error_responses.for_hosting_service(record):
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


def measure_wait(since: str | None, longest: float) -> float:
    """Return how many seconds a request has waited for this worker; 0 where that is not known.

    NGINX can only say what the clock showed, which may have been set since: a request that seems
    to have waited longer than NGINX does would be refused for that, and spoil the metrics.
    """
    try:
        queue = time.time() - float(since or "")
    except ValueError:
        return 0.0
    return queue if 0 <= queue <= longest else 0.0


def own_headers(record: RequestRecord) -> dict[str, str]:
    """Return the headers of every answer."""
    headers = {"X-Request-Id": record.request_id, "Server-Timing": server_timing(record)}
    if record.choice.of == CANARY:
        headers["X-Canary"] = str(record.choice)
    return headers


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


def room_made(kept: Path | None, response: Response) -> Response:
    """Return a response, or 429 where the folder `kept`, if there is one, has no room for it."""
    if kept is None or g.record.reported:
        return response
    # (Tensors are a list of pieces, whose length is in no header yet.)
    length = response.content_length or (response.is_sequence and sum(map(len, response.response)))
    if length <= LARGE_BODY:
        return response
    # NGINX has unlinked the files that it keeps, so they cannot be counted.
    free = shutil.disk_usage(kept).free
    if lies_in_memory(kept):
        free = min(free, free_memory())
    if length <= free / 2:
        return response
    return error_responses.answer_error(
        TooManyRequests(
            f"there is no room for an answer of {length // 2**20} MiB until its caller has read it",
            hint="read answers sooner, and try again after Retry-After seconds",
        )
    )
