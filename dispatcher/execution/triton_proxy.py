"""Passes requests with Triton's own bodies on to Triton's HTTP port, on loopback."""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import g, request

from clients.errors import DeadlineExceeded, ModelFailed, ModelUnavailable, TensorsRefused
from clients.request import Timings
from clients.tensors.signature import described
from clients.triton.errors import http_error
from clients.triton.inference import CACHED, missing_output, refuse_no_items_or_classes
from clients.triton.server import Signature
from dispatcher.codecs.binary_tensors import (
    HEADER_LENGTH,
    asking_for_all,
    named_tensors,
    pick_outputs,
    read_header,
    read_header_length,
)
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
        encoding: with which the body is compressed; empty where it is not.

    """

    body: bytes
    header_length: int | None
    encoding: str = ""


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
            document = read_header(body[:length], deadline)
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
                model = self.model(asked)
                timings = record.timings = Timings()
                timings.begin()
                signature = self.signature(model, deadline)
                try:
                    refuse_what_harms(document, signature)
                    return self.run(model, signature, document, body, length, deadline)
                except TensorsRefused as error:
                    hint = error.hint or tensors_of(signature)
                    raise TensorsRefused(error.message, hint=hint) from error
                except (ModelFailed, DeadlineExceeded):
                    self.lookup.environment.server.note_failure(model)
                    raise
                finally:
                    timings.lap(inference=True)
        finally:
            done()

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
            InferenceError: by Triton's status, or as `call`; or there are no outputs in the cache.

        """
        path = f"{path_of(model, g.record.version)}/infer"
        if not signature.cached:
            headers = {} if length is None else {HEADER_LENGTH: str(length)}
            if encoding := request.accept_encodings.best_match(("gzip", "deflate")):
                headers["Accept-Encoding"] = encoding
            return self.call("POST", path, body, headers, deadline)
        # The cache knows neither parameters nor which outputs were asked for, and keeps errors.
        names = dict(named_tensors(document, "outputs"))
        header = asking_for_all(document, [spec.name for spec in signature.outputs])
        tensors = b"" if length is None else body[length:]
        headers = {HEADER_LENGTH: str(len(header))}
        came = self.call("POST", path, header + tensors, headers, deadline)
        came_body, came_length, found = pick_outputs(came.body, came.header_length, names)
        if missing := missing_output(found, names, signature):
            raise ModelFailed(f"the model {model!r} answered {missing}", hint=CACHED)
        return TritonResponse(came_body, came_length)

    def model(self, asked: str) -> str:
        """Return the name on Triton of a model.

        Raises:
            UnknownModel, ClientDisabled, ModelUnavailable: as `ModelLookup.client`.

        """
        model = self.lookup.client(ModelRequest(asked, [])).served_by
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
        length = response.headers.get(HEADER_LENGTH)
        encoding = response.headers.get("Content-Encoding", "")
        return TritonResponse(came, None if length is None else int(length), encoding)


def path_of(model: str, version: str) -> str:
    """Return the path of a model on Triton."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path


def refuse_what_harms(document: Mapping[str, Any], signature: Signature) -> None:
    """Raise TensorsRefused for requests that Triton 2.51 never answers, or that end it.

    Args:
        document: the JSON of the request.
        signature: the model's.

    """
    shapes = [
        (name, shape)
        for name, tensor in named_tensors(document, "inputs")
        if isinstance(shape := tensor.get("shape"), list)
    ]
    classes = [
        name
        for name, tensor in named_tensors(document, "outputs")
        if isinstance(given := tensor.get("parameters"), dict) and given.get("classification")
    ]
    refuse_no_items_or_classes(shapes, classes, signature)
    batch = bool(signature.max_batch_size)
    for spec in signature.outputs:
        if spec.name in classes and -1 in spec.shape[batch:]:  # it ends with SIGSEGV
            raise TensorsRefused(
                f"classes are wanted of the output `{spec.name}`, which may be empty",
                hint="POST /infer/{model} answers this request, in JSON",
            )


def tensors_of(signature: Signature) -> str:
    """Return which tensors a model takes and gives, in words."""
    takes, gives = described(signature.inputs), described(signature.outputs)
    return f"the model takes {takes or 'nothing'} and gives {gives or 'nothing'}"
