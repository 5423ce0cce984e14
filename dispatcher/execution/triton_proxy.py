"""Passes requests with Triton's own bodies on to Triton's HTTP port, on loopback."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from flask import g, request

from clients.errors import DeadlineExceeded, ModelUnavailable
from clients.request import Timings
from clients.triton.errors import http_error
from dispatcher.codecs.binary_tensors import HEADER_LENGTH, check_header, read_header_length
from dispatcher.codecs.json_request import parse_version
from dispatcher.codecs.metadata import Metadata
from dispatcher.errors import time_used_up
from dispatcher.execution.admission import Admission
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.execution.request import ModelRequest
from dispatcher.execution.slots import Caller
from dispatcher.observability.request_log import RequestRecord
from dispatcher.settings import Settings


@dataclass(frozen=True)
class TritonResponse:
    """What Triton answered, with status 200.

    Args:
        body: of the response.
        header_length: of the JSON in bytes, where binary tensors follow it.

    """

    body: bytes
    header_length: str | None


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

    def infer(self, metadata: Metadata, stated: str | None, where: str) -> TritonResponse:
        """Run a model on the current request's body, in a slot.

        Args:
            metadata: names the model and its version.
            stated: the length of the JSON in the body, if it was stated.
            where: what states it.

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
            check_header(body[:length], deadline)
            try:
                slot = self.admission.calls.enter(
                    self.lookup.registry.name(asked),
                    deadline,
                    Caller(request.environ.get("gunicorn.socket")),
                )
            finally:
                record.queue = time.monotonic() - record.since
            with slot:
                self.lookup.refuse(asked)  # it may have become known while this request waited
                model = self.model(asked, deadline)
                path = path_of(model, record.version)
                timings = record.timings = Timings()
                timings.begin()
                headers = {} if length is None else {HEADER_LENGTH: str(length)}
                with self.using(model, deadline):
                    response = self.call("POST", f"{path}/infer", body, headers, deadline)
                timings.lap(inference=True)
                return response
        finally:
            done()

    def model(self, asked: str, until: float | None = None) -> str:
        """Return the model that a name or alias means; load it where there is a deadline.

        Raises:
            UnknownModel, ClientDisabled, ModelUnavailable: as `ModelLookup.client`.

        """
        model = self.lookup.client(ModelRequest(asked, []), until).served_by
        g.record.known = True
        return model

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
        if (left := deadline - time.monotonic()) <= 0:
            raise time_used_up()
        port = self.settings.triton_http_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=left)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            came = response.read()
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
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise http_error(response.status, came, g.record.version)
        return TritonResponse(came, response.headers.get(HEADER_LENGTH))


def path_of(model: str, version: str) -> str:
    """Return the path of a model on Triton."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path
