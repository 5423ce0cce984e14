"""Passes requests with Triton's own bodies on to Triton's HTTP port, on loopback."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from flask import g, request

from clients.errors import DeadlineExceeded, ModelUnavailable
from clients.request import SequencePart, Timings
from clients.triton.errors import http_error, no_slot
from clients.triton.requests import sequence_parameters
from dispatcher.codecs.binary_tensors import (
    HEADER_LENGTH,
    check_header,
    parameters_of,
    read_header_length,
    with_parameters,
)
from dispatcher.codecs.json_request import parse_version
from dispatcher.codecs.metadata import (
    Metadata,
    TimeLimit,
    is_sequence_id,
    names_sequence,
    read_sequence,
    starts_sequence,
)
from dispatcher.codecs.responses import dumps
from dispatcher.errors import time_used_up
from dispatcher.execution.admission import Admission
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.request import ModelRequest
from dispatcher.execution.slots import STARTS, Caller
from dispatcher.execution.watchdog import shut_down
from dispatcher.observability.request_log import RequestRecord
from dispatcher.settings import Settings

PIECE = 2**16


@dataclass(frozen=True)
class TritonResponse:
    """What Triton answered, with status 200.

    Args:
        body: of the response.
        header_length: of the JSON in bytes, where binary tensors follow it.
        sequence: that it belongs to, if any.

    """

    body: bytes
    header_length: str | None
    sequence: SequencePart | None = None


class TritonProxy:
    """Passes requests on to Triton's HTTP port.

    Args:
        settings: of the container.
        lookup: finds models by names and aliases.
        admission: limits concurrency.

    """

    def __init__(self, settings: Settings, lookup: ModelLookup, admission: Admission) -> None:
        self.settings = settings
        self.lookup = lookup
        self.admission = admission

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
        asked = record.modelname = metadata.require_modelname()
        record.version = parse_version(metadata.modelversion or None)
        self.lookup.refuse(asked)
        each = min(self.settings.client_timeout, metadata.timeout)
        deadline = record.since + each
        done = self.admission.bodies.take(request.content_length or 0)
        try:
            body = request.get_data()
            length = read_header_length(stated, body, where)
            document = check_header(body[:length], deadline)
            starts = starts_sequence(parameters_of(document), metadata)
            try:
                slot = self.admission.calls.enter(
                    self.lookup.registry.name(asked) + STARTS * starts,
                    deadline,
                    Caller(request.environ.get("gunicorn.socket")),
                )
            finally:
                record.queue = time.monotonic() - record.since
            with slot:
                self.lookup.refuse(asked)  # it may have become known while this request waited
                path = self.path(asked, record.version)
                timings = record.timings = Timings()
                timings.begin()
                sequence, changed = None, None
                if call == "infer":  # no other call takes a sequence
                    sequence, changed = self.in_sequence(document, metadata, path, deadline)
                if changed is not None:
                    tensors = b"" if length is None else body[length:]
                    length = None if length is None else len(changed)
                    body = changed + tensors
                headers = {} if length is None else {HEADER_LENGTH: str(length)}
                try:
                    response = self.call("POST", f"{path}/{call}", body, headers, deadline)
                except DeadlineExceeded as error:
                    if starts:
                        raise no_slot(asked, each) from error
                    raise
                timings.lap(inference=True)
                return replace(response, sequence=sequence)
        finally:
            done()

    def in_sequence(
        self, document: Mapping[str, Any], metadata: Metadata, path: str, deadline: float
    ) -> tuple[SequencePart | None, bytes | None]:
        """Return the sequence of a request, and its JSON where Triton gets another id.

        Raises:
            BadParameter: the sequence cannot be used.

        """
        parameters = parameters_of(document)
        if not (
            metadata.owner
            or metadata.session
            or names_sequence({}, metadata)
            or is_sequence_id(parameters.get("sequence_id"))
        ):  # any other id is refused by Triton
            return None, None
        if (part := read_sequence(parameters, metadata)) is None:
            return None, None
        model = unquote(path.split("/")[3])
        left = max(0.001, deadline - time.monotonic())
        signature = self.lookup.environment.server.signature(model, timeout=left)
        sent = sequence_parameters(part, model, signature)
        unchanged = all(parameters.get(name, False) == value for name, value in sent.items())
        return part, None if unchanged else with_parameters(document, sent)

    def generate(self, metadata: Metadata) -> TritonResponse:
        """Run a model on the current request's body, in the form of Triton's `generate`.

        Raises:
            InferenceError: the request is wrong, or the model did not answer it.

        """
        return self.infer(metadata, None, "", "generate")

    def generate_stream(self, metadata: Metadata) -> Iterator[bytes]:
        """Yield the answers of a model as Triton's `generate_stream` sends them: as events.

        A slot of a job is held until the last one. Triton is left where the caller is gone, or the
        next answer does not come in time.

        Raises:
            InferenceError: the request is wrong, or the model did not answer it.

        """
        record: RequestRecord = g.record
        asked = record.modelname = metadata.require_modelname()
        record.version = parse_version(metadata.modelversion or None)
        self.lookup.refuse(asked)
        each = min(self.settings.client_timeout, metadata.timeout)
        limit = TimeLimit(record.since + self.settings.stream_timeout, each)
        body = request.get_data()
        check_header(body, record.since + each)
        caller = Caller(request.environ.get("gunicorn.socket"))
        try:
            slot = self.admission.jobs.enter(
                self.lookup.registry.name(asked), record.since + each, caller
            )
        finally:
            record.queue = time.monotonic() - record.since
        try:
            path = f"{self.path(asked, record.version)}/generate_stream"
            connection, response = self.begin("POST", path, body, {}, record.since + each)
        except BaseException:
            with suppress(DeadlineExceeded):
                slot.release()
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
            finally:
                connection.close()
                with suppress(DeadlineExceeded):
                    slot.release()

        return pieces()

    def path(self, asked: str, version: str) -> str:
        """Return the path of a model on Triton.

        Raises:
            UnknownModel, ClientDisabled, ModelUnavailable: as `ModelLookup.client`.

        """
        model = self.lookup.client(ModelRequest(asked, [])).served_by
        g.record.known = True
        path = f"/v2/models/{quote(model, safe='')}"
        return f"{path}/versions/{version}" if version else path

    def read(self, path: str) -> TritonResponse:
        """Get a document that Triton has."""
        return self.call("GET", path, deadline=g.record.since + self.settings.client_timeout)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        deadline: float = 0.0,
    ) -> TritonResponse:
        """Ask Triton.

        Args:
            method: of HTTP.
            path: below Triton's address.
            body: of the request.
            headers: of the request.
            deadline: for the response, on the clock of `time.monotonic()`.

        Raises:
            InferenceError: by Triton's status; or Triton did not answer, or not in time.

        """
        connection, response = self.begin(method, path, body, headers, deadline)
        with closing(connection), triton_errors(deadline):
            return TritonResponse(response.read(), response.headers.get(HEADER_LENGTH))

    def begin(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        deadline: float,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Ask Triton; return its response, whose body is still to be read, if its status is 200."""
        if (left := deadline - time.monotonic()) <= 0:
            raise time_used_up()
        port = self.settings.triton_http_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=left)
        with ExitStack() as otherwise:
            otherwise.callback(connection.close)
            with triton_errors(deadline):
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                came = response.read() if response.status != HTTPStatus.OK else b""
            if response.status != HTTPStatus.OK:
                raise http_error(response.status, came, g.record.version)
            otherwise.pop_all()
        return connection, response


@contextmanager
def triton_errors(deadline: float) -> Iterator[None]:
    """Turn errors of the connection to Triton into those of the contract."""
    left = deadline - time.monotonic()
    try:
        yield
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"Triton did not answer within {left:.3f} s, what was left of the time for this "
            "request",
            hint="send fewer or smaller tensors in one request",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ModelUnavailable(
            "Triton does not answer", hint="it may be starting: try again in a few seconds"
        ) from error
