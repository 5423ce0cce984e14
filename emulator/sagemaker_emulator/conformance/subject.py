"""The container that is examined: starts it, asks it, and keeps what the checks have learnt."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply, Request, Settings
from sagemaker_emulator.host.calls import Address, NoAnswer, ask
from sagemaker_emulator.host.containers import (
    BIND_TO_PORT,
    NEEDED_PORTS,
    SAFE_PORTS,
    Container,
    Program,
    Remote,
    Start,
    container_of,
    docker,
)

CAPABILITIES = "com.amazonaws.sagemaker.capabilities."
OTHER_PORT = 9110  # what an image is given where it says that it takes one
PATIENT_S = 10.0  # for a ping of which only the status matters
AGAIN_S = 0.1  # between pings
LOADING_S, REFUSED_S = 60.0, 5.0  # how long a first request is repeated: no answer or 5xx; 4xx


class Subject:
    """A container (an image, a URL or a folder) in one of its lives, and what was seen of it."""

    def __init__(self, what: str, settings: Settings) -> None:
        self.what, self.settings, self.limits = what, settings, settings.limits
        self.outcomes: dict[str, str] = {}  # of the checks so far, by their names
        self.kept: dict[str, Any] = {}  # what several checks share
        self.request = settings.request
        self.usual = settings.request or Request(b"{}", "application/json")
        self.usual_status = 0  # of its answer; 0 where none came
        self.first = self.later = Reply(0, b"")  # after the first good ping, and when repeated
        self.models_folder = Path()  # of a multi-model endpoint, with a folder for each model
        self.lives = 0
        self.forget()

    def forget(self) -> None:
        """Forget what belongs to one life."""
        self.lines: list[str] = []
        self.not_ready = "it was not started"
        self.ready_s = 0.0
        self.stopped = ""
        self.code: int | None = None

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the image; empty for a folder or a URL."""
        if "://" in self.what or Path(self.what).is_dir():
            return {}
        if not docker("image", "inspect", "--format", "{{.Id}}", self.what, may_fail=True):
            docker("pull", self.what, seconds=None)
        found = docker("image", "inspect", "--format", "{{json .Config.Labels}}", self.what)
        return dict(json.loads(found) or {})

    @property
    def is_started_here(self) -> bool:
        return not isinstance(self.container, Remote)

    def labelled(self, capability: str) -> bool:
        return self.labels.get(CAPABILITIES + capability) == "true"

    def failed(self, name: str) -> bool:
        return self.outcomes.get(name) == "fail"

    # Its life.

    def begin(self, more: Mapping[str, str] | None = None, models: Path | None = None) -> None:
        """Start it and wait for the first good ping.

        `not_ready` says why none came; `models` is the folder of a multi-model endpoint.
        """
        self.forget()
        given = dict(more or {})
        if self.labelled("accept-bind-to-port"):
            last = OTHER_PORT + NEEDED_PORTS - 1
            given |= {BIND_TO_PORT: str(OTHER_PORT), SAFE_PORTS: f"{OTHER_PORT + 1}-{last}"}
        how = Start(
            f"conformance{self.lives + 1}",
            self.lines.append,
            {**given, **self.settings.environment},
            self.settings.model,
            models,
            self.limits.stop_s,
        )
        self.container: Container = container_of(self.what, how)
        self.lives += 1  # from here on something may have to be taken away
        self.container.start()
        self.wait()

    def wait(self) -> None:
        """Wait for the first good ping, however long each takes."""
        begin = time.monotonic()
        limit = self.limits.start_s if self.is_started_here else PATIENT_S
        while True:
            if ended := self.container.ended():
                self.not_ready = ended
                return
            self.not_ready = self.ping_fault()
            self.ready_s = time.monotonic() - begin
            if not self.not_ready or self.ready_s > limit:
                return
            time.sleep(AGAIN_S)

    def stop(self) -> None:
        """Stop it by SIGTERM; `stopped` says how, `code` with which exit code."""
        if not self.container.ended():
            self.stopped = self.container.stop()
            if isinstance(self.container, Program) and self.container.process:
                self.container.reader.join(1)
                self.code = self.container.process.returncode

    def close(self) -> None:
        """Take away what is left of it."""
        if self.lives:
            self.container.stop()

    # Asking.

    @property
    def address(self) -> Address:
        return self.container.address

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = 0,
    ) -> Reply:
        """Send a request and read the whole answer; raise NoAnswer where none comes in time."""
        begin = time.monotonic()
        until = begin + (seconds or self.limits.answer_s)
        pieces, first = [], 0.0
        try:
            answer = ask(self.address, method, path, body, headers, until=until)
            for piece in answer.pieces(until):
                first = first or time.monotonic() - begin
                pieces.append(piece)
        except NoAnswer as error:
            raise NoAnswer(f"{method} {path}: {error}") from error
        took = time.monotonic() - begin
        return Reply(answer.status, b"".join(pieces), answer.headers, first or took, took)

    def invoke(
        self, request: Request, headers: Mapping[str, str] | None = None, seconds: float = 0
    ) -> Reply:
        """Send a request to /invocations; raises as `ask`."""
        sent = {**request.headers(), **(headers or {})}
        return self.ask("POST", "/invocations", request.body, sent, seconds)

    def ping_fault(self, seconds: float = PATIENT_S) -> str:
        """Return why the answer to a ping is not good; empty if it is."""
        reply = self.ping(seconds)
        if reply.status == HTTPStatus.OK:
            return ""
        return f"GET /ping is answered with {reply}" if reply.status else str(reply)

    def usual_fault(self, seconds: float = 0) -> str:
        """Return why the usual request is not answered as before; empty if it is."""
        reply = self.tried(seconds=seconds)
        if reply.status == self.usual_status:
            return ""
        what = f"POST /invocations is answered with {reply}, not {self.usual_status} as before"
        return what if reply.status else str(reply)

    def must_be_well(self) -> None:
        """Raise Failed where it answers no more; to replace a process may take some seconds."""
        until = time.monotonic() + PATIENT_S
        while fault := self.container.ended() or self.ping_fault() or self.usual_fault():
            if self.container.ended() or time.monotonic() > until:
                raise Failed(f"afterwards: {fault}")
            time.sleep(AGAIN_S)

    def good_request(self) -> Request:
        """Return a request that was answered well; raise NotApplicable where none is known."""
        if self.request is None or not 200 <= self.usual_status < 300:
            raise NotApplicable(
                "no request is known that is answered with 2xx; give one with --body FILE "
                "--content-type TYPE"
            )
        return self.request

    def any_request(self) -> Request:
        """Return a request that is answered, well or not; raise NotApplicable where none is."""
        if not self.usual_status:
            raise NotApplicable("POST /invocations is not answered at all")
        return self.usual

    def learn(self) -> None:
        """Send the first request until it is answered well."""
        begin = time.monotonic()
        self.first = self.later = self.tried()
        while self.request and not self.later.good:
            waited = REFUSED_S if 0 < self.later.status < 500 else LOADING_S
            if time.monotonic() - begin > min(waited, self.limits.start_s):
                break
            time.sleep(AGAIN_S)
            self.later = self.tried()
        self.usual_status = self.later.status

    def tried(self, request: Request | None = None, seconds: float = 0) -> Reply:
        """Return the answer to a request, the usual one if none is given; status 0 for none."""
        try:
            return self.invoke(request or self.usual, seconds=seconds)
        except NoAnswer as error:
            return Reply(0, str(error).encode())

    def ping(self, seconds: float) -> Reply:
        """Return the answer to a ping; status 0 for none."""
        try:
            return self.ask("GET", "/ping", seconds=seconds)
        except NoAnswer as error:
            return Reply(0, str(error).encode())
