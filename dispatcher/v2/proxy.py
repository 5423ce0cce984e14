"""Passes requests to Triton's `generate` and `generate_stream` on to its HTTP port, in a slot."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from flask import g, request

from clients.errors import DeadlineExceeded, ModelFailed
from clients.request import Timings
from clients.triton.requests import DEADLINE, time_parameters
from clients.triton.server import Signature
from dispatcher.codecs.json_request import parse_object, parse_version
from dispatcher.codecs.metadata import Metadata, TimeLimit
from dispatcher.codecs.responses import dumps
from dispatcher.execution.admission import Admission
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.slots import Slot, Slots
from dispatcher.execution.watchdog import shut_down
from dispatcher.model_request import ModelRequest
from dispatcher.settings import Settings
from dispatcher.telemetry.request_log import RequestRecord
from dispatcher.v2.checks import as_json, check_fields, naming_tensors, read_answer
from dispatcher.v2.connection import TritonHttp, path_of

FIELDS_EXPECTED = 'expected an object with a field for each input: {"text": "…", "number": 1}'


@dataclass
class TritonProxy:
    """Passes requests on to Triton's HTTP port."""

    settings: Settings
    lookup: ModelLookup
    admission: Admission
    using: Callable[[str, float], AbstractContextManager[None]]  # keeps a model loaded meanwhile
    # Waits for a slot for the current request.
    enter: Callable[[Slots, ModelRequest, float], Slot]

    def __post_init__(self) -> None:
        self.http = TritonHttp(self.settings)

    def generate(self, metadata: Metadata) -> Any:
        """Run a model on the current request's body, in the form of Triton's `generate`."""
        record: RequestRecord = g.record
        asked, deadline = self.begin(metadata)
        done = self.admission.bodies.take_body(request)
        try:
            document = parse_object(request.get_data(), deadline, hint=FIELDS_EXPECTED)
            with self.enter(self.admission.calls, ModelRequest(asked, []), deadline):
                model = self.model(asked, deadline)
                timings = record.timings = Timings()
                timings.begin()
                timings.call(model)
                try:
                    with self.using(model, deadline):
                        connection, response = self.send("generate", model, document, deadline)
                        return read_answer(self.http.rest(connection, response, deadline))
                except (ModelFailed, DeadlineExceeded):
                    self.lookup.environment.server.note_failure(model)
                    raise
                finally:
                    timings.lap("inference")
        finally:
            done()

    def generate_stream(self, metadata: Metadata) -> tuple[Iterator[bytes], Callable[[], None]]:
        """Return the answers of a model as Triton's `generate_stream` sends them: as events.

        A slot of a series is held until what is returned as second is called. Triton is left where
        the caller is gone, or the next answer does not come in time.
        """
        asked, until = self.begin(metadata)
        limit = TimeLimit(g.record.since + self.settings.stream_timeout, until - g.record.since)
        done = self.admission.bodies.take_body(request)
        with ExitStack() as otherwise:
            otherwise.callback(done)
            document = parse_object(request.get_data(), until, hint=FIELDS_EXPECTED)
            slot = self.enter(self.admission.series, ModelRequest(asked, []), until)
            held = otherwise.enter_context(ExitStack())
            held.enter_context(suppress(DeadlineExceeded))
            held.callback(slot.release)
            model = self.model(asked, until)
            held.enter_context(self.using(model, until))
            connection, response = self.send("generate_stream", model, document, until)
            held.callback(connection.close)
            end = held.pop_all().close

        def stop() -> None:
            if connection.sock:
                shut_down(connection.sock)

        slot.deadline, slot.on_timeout, slot.until_gone = limit.deadline(), stop, True

        def lines() -> Iterator[bytes]:
            try:
                while line := response.readline():
                    slot.deadline = limit.deadline()
                    yield as_json(line)
            except (OSError, http.client.HTTPException):
                error = {"error": "the model's next answer did not come in time"}
                yield f"data: {dumps(error)}\n\n".encode()

        return lines(), end

    def begin(self, metadata: Metadata) -> tuple[str, float]:
        """Return which model the current request asks, and its deadline."""
        record: RequestRecord = g.record
        asked = record.modelname = metadata.require_modelname()
        record.version = parse_version(metadata.modelversion or None)
        return asked, record.since + min(self.settings.client_timeout, metadata.timeout)

    def send(
        self, call: str, model: str, document: Mapping[str, Any], deadline: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Check a request, and send it to Triton; return its response, which is yet to be read."""
        signature = self.signature(model, deadline)
        # Runs whose callers have given up are left out: Triton does not cancel them.
        until = time_parameters(deadline - time.monotonic())[DEADLINE]
        body = check_fields(document, model, signature, {DEADLINE: until})
        with naming_tensors(signature):
            version = g.record.version or self.lookup.environment.server.pinned.get(model, "")
            path = f"{path_of(model, version)}/{call}"
            return self.http.begin("POST", path, body, deadline)

    def model(self, asked: str, until: float | None = None) -> str:
        """Return the model that a name or alias means; load it where there is a deadline.

        Raises UnknownModel, ClientDisabled, ModelUnavailable: as `ModelLookup.client`.
        """
        model = self.lookup.client(asked, until).served_by
        g.record.known = True
        return model

    def signature(self, model: str, deadline: float) -> Signature:
        """Return the tensors of a model, in the version that the current request names."""
        left = max(0.0, deadline - time.monotonic())
        server = self.lookup.environment.server
        return server.signature(model, g.record.version, timeout=left)
