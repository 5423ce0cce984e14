"""Passes requests with Triton's own bodies on to Triton's HTTP port, in a slot."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import Any

from flask import g, request

from clients.errors import DeadlineExceeded, ModelFailed
from clients.request import Timings
from clients.triton.errors import no_slot
from clients.triton.inference import CACHED, missing_output
from clients.triton.requests import DEADLINE, time_parameters
from clients.triton.server import Signature
from dispatcher.codecs.binary_tensors import (
    HEADER_LENGTH,
    asking_for_all,
    named_tensors,
    parameters_of,
    pick_outputs,
    read_header,
    read_header_length,
)
from dispatcher.codecs.json_request import parse_version
from dispatcher.codecs.metadata import Metadata, TimeLimit, starts_sequence
from dispatcher.codecs.responses import dumps
from dispatcher.execution.admission import Admission
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.request import ModelRequest
from dispatcher.execution.slots import STARTS, Caller
from dispatcher.execution.watchdog import shut_down
from dispatcher.observability.request_log import RequestRecord
from dispatcher.settings import Settings
from dispatcher.triton_protocol.checks import (
    changed,
    in_sequence,
    naming_tensors,
    refuse_generate,
    refuse_no_answer,
    refuse_what_harms,
)
from dispatcher.triton_protocol.connection import TritonHttp, TritonResponse, path_of

PIECE = 2**16


class TritonProxy:
    """Passes requests on to Triton's HTTP port.

    Args:
        settings: of the container.
        lookup: finds models by names and aliases.
        admission: limits concurrency.
        using: keeps a model loaded meanwhile, until a deadline.

    """

    def __init__(
        self,
        settings: Settings,
        lookup: ModelLookup,
        admission: Admission,
        using: Callable[[str, float], AbstractContextManager[None]],
    ) -> None:
        self.settings = settings
        self.lookup = lookup
        self.admission = admission
        self.using = using
        self.http = TritonHttp(settings)

    def infer(
        self, metadata: Metadata, stated: str | None, where: str, call: str = "infer"
    ) -> TritonResponse:
        """Run a model on the current request's body, in a slot.

        Args:
            metadata: names the model and its version.
            stated: the length of the JSON in the body, if it was stated.
            where: what states it.
            call: of Triton's protocol: infer or generate.

        Raises:
            InferenceError: the request is wrong, or the model did not answer it.

        """
        record: RequestRecord = g.record
        asked, each = self.begin(metadata)
        deadline = record.since + each
        done = self.admission.bodies.take(request.content_length or 0)
        try:
            body = request.get_data()
            length = read_header_length(stated, body, where)
            document = read_header(body[:length], deadline)
            starts = starts_sequence(parameters_of(document), metadata)
            record.begin_waiting()
            try:
                slot = self.admission.calls.enter(
                    self.lookup.registry.name(asked) + STARTS * starts,
                    deadline,
                    Caller(request.environ.get("gunicorn.socket")),
                )
            finally:
                record.end_waiting()
            with slot:
                self.lookup.refuse(asked)  # it may have become known while this request waited
                model = self.model(asked, deadline)
                timings = record.timings = Timings()
                timings.begin()
                timings.call(model)
                try:
                    with self.using(model, deadline):
                        return self.run_checked(
                            model, call, metadata, document, body, length, deadline
                        )
                except (ModelFailed, DeadlineExceeded) as error:
                    if starts and isinstance(error, DeadlineExceeded):
                        raise no_slot(asked, each) from error
                    self.lookup.environment.server.note_failure(model)
                    raise
                finally:
                    timings.lap(inference=True)
        finally:
            done()

    def run_checked(  # noqa: PLR0913, PLR0917  all that is known of the request
        self,
        model: str,
        call: str,
        metadata: Metadata,
        document: Mapping[str, Any],
        body: bytes,
        length: int | None,
        deadline: float,
    ) -> TritonResponse:
        """Check a request as far as Triton does not, and run it; arguments as of `run`."""
        signature = self.signature(model, deadline)
        # Runs whose callers have given up are left out: Triton does not cancel them.
        time_left = time_parameters(deadline - time.monotonic())
        with naming_tensors(signature):
            if call != "infer":
                refuse_generate(document, model, signature)
                path = f"{path_of(model, g.record.version)}/{call}"
                body = changed(document, body, {DEADLINE: time_left[DEADLINE]})
                return refuse_no_answer(self.http.call("POST", path, body, {}, deadline))
            refuse_what_harms(document, signature)
            sequence, parameters = in_sequence(document, metadata, model, signature)
            if not signature.cached or signature.sequence:  # the cache knows no parameters
                parameters |= time_left
            if parameters:
                header = changed(document, body[:length], parameters)
                body = header + (b"" if length is None else body[length:])
                length = None if length is None else len(header)
            response = self.run(model, signature, document, body, length, deadline)
        return replace(response, sequence=sequence)

    def begin(self, metadata: Metadata) -> tuple[str, float]:
        """Return which model the current request asks, and how many seconds it has."""
        record: RequestRecord = g.record
        asked = record.modelname = metadata.require_modelname()
        record.version = parse_version(metadata.modelversion or None)
        self.lookup.refuse(asked)
        return asked, min(self.settings.client_timeout, metadata.timeout)

    def run(  # noqa: PLR0913, PLR0917  all that is known of the request
        self,
        model: str,
        signature: Signature,
        document: Mapping[str, Any],
        body: bytes,
        length: int | None,
        deadline: float,
    ) -> TritonResponse:
        """Run a model.

        Args:
            model: its name.
            signature: the model's.
            document: the JSON in the body.
            body: of the request.
            length: of the JSON in bytes; `None` where all of the body is JSON.
            deadline: for the response, on the clock of `time.monotonic()`.

        Raises:
            InferenceError: by Triton's status, or as `TritonHttp.call`; or the cache has an answer
                without outputs.

        """
        path = f"{path_of(model, g.record.version)}/infer"
        if not signature.cached or signature.sequence:
            headers = {} if length is None else {HEADER_LENGTH: str(length)}
            if encoding := request.accept_encodings.best_match(("gzip", "deflate")):
                headers["Accept-Encoding"] = encoding
            return self.http.call("POST", path, body, headers, deadline)
        # The cache knows neither parameters nor which outputs were asked for, and keeps errors.
        names = dict(named_tensors(document, "outputs"))
        header = asking_for_all(document, [spec.name for spec in signature.outputs])
        tensors = b"" if length is None else body[length:]
        headers = {HEADER_LENGTH: str(len(header))}
        came = self.http.call("POST", path, header + tensors, headers, deadline)
        came_body, came_length, found = pick_outputs(came.body, came.header_length, names)
        if missing := missing_output(found, names, signature):
            raise ModelFailed(f"the model {model!r} answered {missing}", hint=CACHED)
        return TritonResponse(came_body, came_length)

    def generate(self, metadata: Metadata) -> TritonResponse:
        """Run a model on the current request's body, in the form of Triton's `generate`.

        Raises:
            InferenceError: the request is wrong, or the model did not answer it.

        """
        return self.infer(metadata, None, "", "generate")

    def generate_stream(self, metadata: Metadata) -> tuple[Iterator[bytes], Callable[[], None]]:
        """Return the answers of a model as Triton's `generate_stream` sends them: as events.

        A slot of a job is held until what is returned as second is called. Triton is left where
        the caller is gone, or the next answer does not come in time.

        Raises:
            InferenceError: the request is wrong, or the model did not answer it.

        """
        done = self.admission.bodies.take(request.content_length or 0)
        try:
            return self.begin_stream(metadata)
        finally:
            done()

    def begin_stream(self, metadata: Metadata) -> tuple[Iterator[bytes], Callable[[], None]]:
        record: RequestRecord = g.record
        asked, each = self.begin(metadata)
        limit = TimeLimit(record.since + self.settings.stream_timeout, each)
        body = request.get_data()
        document = read_header(body, record.since + each)
        caller = Caller(request.environ.get("gunicorn.socket"))
        record.begin_waiting()
        try:
            slot = self.admission.jobs.enter(
                self.lookup.registry.name(asked), record.since + each, caller
            )
        finally:
            record.end_waiting()
        held = ExitStack()
        held.enter_context(suppress(DeadlineExceeded))
        held.callback(slot.release)
        try:
            model = self.model(asked, record.since + each)
            until = record.since + each
            held.enter_context(self.using(model, until))
            signature = self.signature(model, until)
            refuse_generate(document, model, signature)
            path = f"{path_of(model, record.version)}/generate_stream"
            with naming_tensors(signature):
                connection, response = self.http.begin("POST", path, body, {}, until)
            held.callback(connection.close)
        except BaseException:
            held.close()
            raise

        def stop() -> None:
            if connection.sock:
                shut_down(connection.sock)

        slot.deadline, slot.on_timeout, slot.until_gone = limit.deadline(), stop, True

        def pieces() -> Iterator[bytes]:
            try:
                while piece := response.read1(PIECE):
                    slot.deadline = limit.deadline()
                    yield piece
            except (OSError, http.client.HTTPException):
                error = {"error": "the model's next answer did not come in time"}
                yield f"data: {dumps(error)}\n\n".encode()

        return pieces(), held.close

    def model(self, asked: str, until: float | None = None) -> str:
        """Return the model that a name or alias means; load it where there is a deadline.

        Raises:
            UnknownModel, ClientDisabled, ModelUnavailable: as `ModelLookup.client`.

        """
        model = self.lookup.client(ModelRequest(asked, []), until).served_by
        g.record.known = True
        return model

    def signature(self, model: str, deadline: float) -> Signature:
        """Return the tensors of a model, in the version that the current request names.

        Raises:
            InferenceError: it is not served, or not now.

        """
        left = max(0.0, deadline - time.monotonic())
        server = self.lookup.environment.server
        return server.signature(model, g.record.version, timeout=left)
