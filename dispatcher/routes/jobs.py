"""Asynchronous requests: accepted as jobs, looked at, fetched and cancelled."""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import dataclass
from typing import IO, Any

from flask import Blueprint, Response, g, request
from werkzeug.wsgi import FileWrapper

from clients.errors import BadRequest
from dispatcher.app import VALID_REQUEST_ID
from dispatcher.codecs.content_types import read_body
from dispatcher.codecs.json_request import CHUNK, LARGE_BODY
from dispatcher.codecs.metadata import INFERENCE_ID, Metadata
from dispatcher.codecs.responses import JSON, json_response
from dispatcher.errors import BadHeader, JobConflict, NotHere, UnknownJob
from dispatcher.jobs.store import CANCELLED, RESULT, JobRequest, JobStore, StoredJob
from dispatcher.log_lines import timestamp
from dispatcher.model_request import ModelRequest
from dispatcher.s3.step import Output, Step
from dispatcher.settings import Settings

ACCEPTED = 202
# What the answer depends on besides path, query and body. Nothing else is stored, and no key.
STORED_HEADERS = (
    "CONTENT_TYPE",
    "HTTP_CONTENT_ENCODING",
    "HTTP_ACCEPT",
    "HTTP_X_AMZN_SAGEMAKER_CUSTOM_ATTRIBUTES",
    "HTTP_X_AMZN_SAGEMAKER_TARGET_MODEL",
)
TRACE_HEADERS = ("HTTP_TRACEPARENT", "HTTP_TRACESTATE")
OWN_HEADERS = {"content-length", "x-request-id", "server-timing"}  # of the answer that is sent now


@dataclass(frozen=True)
class Later:
    """Accepts requests that are answered later."""

    store: JobStore
    settings: Settings
    # Finds out where the answer is stored in S3; `None` where no bucket is configured.
    s3: Step | None

    def accept(self, metadata: Metadata) -> Response:
        """Store the current request, and answer 202.

        Raises InferenceError: as `JobStore.accept`; or the body, if it is small and of JSON, is
        wrong.
        """
        identity = request.headers.get(INFERENCE_ID) or uuid.uuid4().hex
        if not VALID_REQUEST_ID.fullmatch(identity):
            raise BadHeader(
                f"the header {INFERENCE_ID} has {identity[:60]!r}",
                hint="expected an id of at most 128 letters, digits and ._:-",
            )
        if metadata.session:
            raise BadRequest(
                "a request of a session cannot be answered later: others come after it",
                hint="leave out `Prefer: respond-async`",
            )
        g.record.request_id = identity
        model, environ, length = metadata.path_model, request.environ, request.content_length or 0
        body: IO[bytes] = request.stream
        place = ""
        packed = request.headers.get("Content-Encoding")
        if request.mimetype == JSON and length <= LARGE_BODY and not packed:
            body = io.BytesIO(request.get_data())
            place = self.place(metadata)
        asked = JobRequest(
            identity,
            g.record.key,
            f"/infer/{model.encode().decode('latin-1')}" if model else "/invocations",
            environ.get("QUERY_STRING", ""),
            {name: environ[name] for name in STORED_HEADERS if environ.get(name)},
            place or f"/jobs/{identity}/result",
            trace={name: environ[name] for name in TRACE_HEADERS if environ.get(name)},
            models=sorted(g.record.may_ask.names) if g.record.may_ask else (),
        )
        # What the answer depends on, but for the body; its order and its trace do not matter.
        named = (metadata.path_model, metadata.other_model, metadata.modelversion, metadata.texts)
        forms = (metadata.accept, request.content_type, packed)
        job = self.store.accept(asked, body, length, json.dumps([named, forms], sort_keys=True))
        response = json_response(describe_job(job))
        response.status_code = ACCEPTED
        response.headers["Location"] = f"/jobs/{identity}"
        response.headers["Preference-Applied"] = "respond-async"
        return response

    def place(self, metadata: Metadata) -> str:
        """Read the body; return the object in S3 for its answer, empty where there is none."""
        asked = read_body(request, metadata)
        if self.s3:
            asked = self.s3.resolve(asked, self.s3.reads(g.record), metadata.texts)
        output = asked.output if isinstance(asked, ModelRequest) else None
        return str(output.locations[0]) if isinstance(output, Output) and not output.each else ""


def job_routes(store: JobStore | None) -> Blueprint:
    routes = Blueprint("jobs", __name__)

    @routes.get("/jobs/<job>")
    def show(job: str) -> Response:
        return json_response(describe_job(found(job)[1]))

    @routes.delete("/jobs/<job>")
    def cancel(job: str) -> Response:
        """Cancel a job that has not ended; return its state."""
        jobs, one = found(job)
        jobs.end(one, CANCELLED)
        return json_response(describe_job(one))

    @routes.get("/jobs/<job>/result")
    def result(job: str) -> Response:
        """Return the answer to a job's request, with its status."""
        _, one = found(job)
        end = one.end
        if end is None or end["status"] == CANCELLED:
            raise JobConflict(
                f"the job {one.request.identity} {'was cancelled' if end else 'has not ended'}",
                hint=f"GET /jobs/{one.request.identity} shows its status",
            )
        try:
            file = (one.folder / RESULT).open("rb")
        except FileNotFoundError:  # it was removed since
            raise unknown(job) from None
        headers = [(k, v) for k, v in end["headers"] if k.lower() not in OWN_HEADERS]
        response = Response(FileWrapper(file, CHUNK), end["code"], headers)
        response.call_on_close(file.close)
        response.content_length = (one.folder / RESULT).stat().st_size
        return response

    def found(identity: str) -> tuple[JobStore, StoredJob]:
        if store is None:
            raise NotHere(
                "asynchronous requests are switched off",
                hint="JOBS_QUEUE switches them on; without `serve`, JOBS_DIR too",
            )
        if (job := store.find(g.record.key, identity)) is None:
            raise unknown(identity)
        return store, job

    return routes


def unknown(identity: str) -> UnknownJob:
    return UnknownJob(
        f"there is no job {identity[:100]!r} of this caller",
        hint="a job is removed JOBS_KEEP seconds after its end, and seen by its own API key only",
    )


def describe_job(job: StoredJob) -> dict[str, Any]:
    """Return the state of a job as callers see it."""
    request, run, end = job.request, job.run, job.end
    identity, begun = request.identity, run.get("started")
    times = {"created": request.created, "started": begun, "ended": end and end["ended"]}
    return {
        "id": identity,
        "status": end["status"] if end else "running" if begun else "queued",
        "status_url": f"/jobs/{identity}",
        "result": request.result,
        **{name: timestamp(at) for name, at in times.items() if at},
        **{name: end[name] for name in ("code", "error") if end and name in end},
    }
