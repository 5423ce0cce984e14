"""Runs jobs in a web worker, each as a request to the application itself.

A job's caller is one end of a pair of sockets: what answers in the place of a hanging model writes
to it, and a job that is cancelled is a caller who has left.
"""

from __future__ import annotations

import atexit
import http.client
import logging
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug.test import create_environ
from werkzeug.wsgi import ClosingIterator

from dispatcher.auth.api_keys import INFERENCE, Key
from dispatcher.auth.authorization import OF_JOB
from dispatcher.background import start_rounds
from dispatcher.codecs.error_responses import BUG_MESSAGE, error_body
from dispatcher.codecs.responses import dumps
from dispatcher.errors import RETRY_AFTER_S, ROUTING, time_used_up
from dispatcher.execution.admission import Admission
from dispatcher.jobs.store import BODY, FAILED, RESULT, SUCCEEDED, JobStore, StoredJob
from dispatcher.locks import read_json

log = logging.getLogger(__name__)

MAX_BEGUN = 3  # times that a worker may end while it runs a job
MAX_REFUSED = 12  # times that a job may be answered 429 or 503, which it is every five seconds
LOOK_S = 0.5  # for jobs that other workers have accepted
CANCEL_LOOK_MS = 100
SWEEP_S = 5.0
LEFT_S = 1.0  # for the answer of a thread whose connection was closed
FIRST_ERROR = 400

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class JobAnswer:
    """The answer to a job's request: its body is in a file."""

    status: int
    headers: list[tuple[str, str]]
    body: Path


@dataclass
class Runner:
    """Runs the jobs of a store."""

    store: JobStore
    app: Wsgi
    admission: Admission
    leaving: Callable[[], bool]  # whether this worker is about to end
    _running: dict[StoredJob, dict[str, Any]] = field(default_factory=dict)
    _swept: float = 0.0

    def start(self) -> None:
        """Run jobs, one after the other, in a thread from now on."""
        start_rounds(self._run_all, "jobs", LOOK_S)
        atexit.register(self.give_back)

    def _run_all(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Run the next job; return whether there was one, and it might be run now."""
        if time.monotonic() > self._swept + SWEEP_S:
            self._swept = time.monotonic()
            self.store.sweep()
        if self.leaving() or not self.admission.is_free():
            return False
        with self.store.taken() as job:
            if job:
                try:
                    self.run(job)
                finally:
                    self._running.pop(job, None)
        return job is not None

    def give_back(self) -> None:
        """Have other workers run what this one, which ends as it should, has begun."""
        for job, before in list(self._running.items()):
            with suppress(OSError):
                job.note(**before)

    def run(self, job: StoredJob) -> None:
        """Run a job that is locked."""
        before = self._running[job] = job.run
        begun, refused = before.get("begun", 0), before.get("refused", 0)
        if begun >= MAX_BEGUN:
            log.error("the job %s has ended %d web workers", job.request.identity, begun)
            message = f"the web worker has ended {begun} times while it ran this job"
            self.finish(job, own_answer(job, 500, message))
            return
        job.note(begun=begun + 1, refused=refused, started=time.time())
        try:
            answer = replay(self.app, job)
        except Exception:
            log.exception("the job %s has failed", job.request.identity)
            answer = own_answer(job, 500, BUG_MESSAGE)
        if answer.status in RETRY_AFTER_S and refused < MAX_REFUSED and not job.has_ended:
            job.note(begun=0, refused=refused + 1)
            self.store.postpone(job, RETRY_AFTER_S[answer.status])
            answer.body.unlink()
        else:
            self.finish(job, answer)

    def finish(self, job: StoredJob, answer: JobAnswer) -> None:
        """Keep the answer, unless the job was cancelled."""
        answer.body.rename(job.folder / RESULT)
        failed = answer.status >= FIRST_ERROR
        document = read_json(job.folder / RESULT) if failed else None
        error = document and document.get("error")
        done = self.store.end(
            job,
            FAILED if failed else SUCCEEDED,
            code=answer.status,
            headers=answer.headers,
            **({"error": error} if error else {}),
        )
        if not done:
            self.store.settle(job)


def replay(app: Wsgi, job: StoredJob) -> JobAnswer:
    """Answer a job's request as if its caller sent it now, and waited."""
    caller, connection = socket.socketpair()
    future: Future[JobAnswer] = Future()
    future.add_done_callback(lambda _: connection.close())
    threading.Thread(target=answer, args=(app, job, connection, future), daemon=True).start()
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    with closing(caller):
        while not poll.poll(CANCEL_LOOK_MS):
            if job.has_ended:
                caller.shutdown(socket.SHUT_WR)
        if future.done():
            return future.result()
        try:  # the watchdog has answered, in the place of a thread that hangs
            with http.client.HTTPResponse(caller) as came:
                came.begin()
                file = part_of(job)
                file.write_bytes(came.read())
                return JobAnswer(came.status, came.getheaders(), file)
        except (OSError, http.client.HTTPException):  # it has closed the connection only
            with suppress(TimeoutError):
                return future.result(LEFT_S)
            return own_answer(job, 504, time_used_up().message)


def answer(app: Wsgi, job: StoredJob, connection: socket.socket, future: Future[JobAnswer]) -> None:
    """Call the application, and write its answer to a file."""
    status, headers = 0, list[tuple[str, str]]()

    def start_response(line: str, given: list[tuple[str, str]], _: Any = None) -> None:
        nonlocal status, headers
        status, headers = int(line.split(maxsplit=1)[0]), given

    file = part_of(job)
    try:
        with (job.folder / BODY).open("rb") as body, file.open("wb") as out:
            environ = {**environ_of(job, connection), "wsgi.input": body}
            pieces = app(environ, start_response)
            with closing(ClosingIterator(pieces)) as answered:
                out.writelines(answered)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(JobAnswer(status, headers, file))


def environ_of(job: StoredJob, connection: socket.socket) -> dict[str, Any]:
    """Return the WSGI environment of a job's request, as of one that comes from NGINX."""
    request = job.request
    return {
        **create_environ(),
        "gunicorn.socket": connection,
        "REQUEST_METHOD": "POST",
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query,
        "CONTENT_LENGTH": str((job.folder / BODY).stat().st_size),
        "HTTP_X_AMZN_SAGEMAKER_INFERENCE_ID": request.identity,
        "HTTP_X_REQUEST_START": str(time.time()),
        OF_JOB: Key(INFERENCE, request.owner, b"", tuple(request.models)),
        **request.headers,
        **request.trace,
    }


def own_answer(job: StoredJob, status: int, message: str) -> JobAnswer:
    """Return an error that the application has not answered itself."""
    file = part_of(job)
    code, hint = ROUTING[status]
    error = {**error_body(None, code, message, hint), "request_id": job.request.identity}
    file.write_text(dumps({"error": error}), encoding="utf-8")
    return JobAnswer(status, [("Content-Type", "application/json")], file)


def part_of(job: StoredJob) -> Path:
    return job.folder / f"{uuid.uuid4().hex}.part"
