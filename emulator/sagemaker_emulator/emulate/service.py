"""The service's side: the HTTP interface that boto3 speaks, in front of an endpoint."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

from flask import Flask, Response, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from sagemaker_emulator.emulate.asynchronous import AsyncCalls
from sagemaker_emulator.emulate.contract import (
    ACCOUNT,
    CUSTOM_ATTRIBUTES,
    INVOKED_VARIANT,
    PREFIX,
    REGION,
    Refused,
    members,
    too_large,
    validation_error,
)
from sagemaker_emulator.emulate.endpoint import Endpoint, Variant, as_model_errors
from sagemaker_emulator.emulate.event_stream import CONTENT_TYPE, model_stream_error, payload_part
from sagemaker_emulator.host.calls import Answer, NoAnswer, TooLate
from sagemaker_emulator.host.health import FAILED

OPERATIONS = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
    "async-invocations": "InvokeEndpointAsync",
}
NO_ASYNC = "The endpoint is not asynchronous: start `emulate` with --async-output s3://…"
PIECE = 2**20
SHOWN = 500


class Service:
    """Answers calls of boto3.

    Args:
        endpoint: that is asked; any name is its name.
        async_calls: takes InvokeEndpointAsync, where there is an output for it.
        say: takes a line for each call.

    """

    def __init__(
        self, endpoint: Endpoint, async_calls: AsyncCalls | None, say: Callable[[str], None]
    ) -> None:
        self.endpoint, self.async_calls, self.say = endpoint, async_calls, say

    def app(self) -> Flask:
        app = Flask(__name__, static_folder=None)

        @app.post("/endpoints/<name>/<path>")
        def call(name: str, path: str) -> Response:
            return self.call(name, path)

        @app.post("/")
        def control() -> Response:
            return self.control()

        @app.errorhandler(404)
        @app.errorhandler(405)
        def unknown(_: Exception) -> Response:
            return unknown_operation()

        return app

    def call(self, name: str, path: str) -> Response:
        """Answer one call of `sagemaker-runtime`."""
        operation = OPERATIONS.get(path, "")
        if not operation:
            drained(0)
            return unknown_operation()
        begin = time.monotonic()
        try:
            body = drained(self.endpoint.limits.max_body)
            given = {name.lower(): in_utf_8(value) for name, value in request.headers}
            call = members(operation, given)
            if operation == "InvokeEndpointAsync":
                response = self.asynchronously(name, call, body)
                self.note(operation, call, None, 202, begin)
                return response
            variant = self.endpoint.choose(name, call)
            limits = self.endpoint.limits
            answer = self.endpoint.ask(name, variant, body, call, limits.answer_s)
            if operation == "InvokeEndpoint":
                response = whole(name, answer, begin + limits.answer_s)
                self.note(operation, call, variant, 200, begin)
            else:
                response = Response(
                    self.streamed(answer, begin, call, variant), mimetype=CONTENT_TYPE
                )
                content_type = answer.headers.get("Content-Type", "")
                response.headers[f"{PREFIX}Content-Type"] = content_type
        except Refused as error:
            self.say(f"{operation} {error.name}: {error.message[:SHOWN]}")
            return refused(error)
        if CUSTOM_ATTRIBUTES in answer.headers:
            response.headers[CUSTOM_ATTRIBUTES] = answer.headers[CUSTOM_ATTRIBUTES]
        response.headers[INVOKED_VARIANT] = variant.name
        response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
        return response

    def streamed(
        self, answer: Answer, begin: float, call: Mapping[str, str], variant: Variant
    ) -> Iterator[bytes]:
        """Yield the frames of an answer as it comes."""
        count = 0
        limits = self.endpoint.limits
        try:
            with closing(answer.pieces(begin + limits.stream_s)) as pieces:
                for piece in pieces:
                    count += 1
                    yield payload_part(piece)
        except NoAnswer as error:
            code = "ModelInvocationTimeExceeded" if isinstance(error, TooLate) else "StreamBroken"
            self.say(f"InvokeEndpointWithResponseStream: ModelStreamError {code}: {error}")
            yield model_stream_error(code, str(error))
            return
        name = f"InvokeEndpointWithResponseStream ({count} parts)"
        self.note(name, call, variant, 200, begin)

    def asynchronously(self, name: str, call: Mapping[str, str], body: bytes) -> Response:
        if self.async_calls is None:
            raise validation_error(NO_ASYNC)
        content, headers = self.async_calls.submit(name, call, body)
        return Response(json.dumps(content), 202, headers, mimetype="application/json")

    def note(
        self,
        operation: str,
        call: Mapping[str, str],
        variant: Variant | None,
        status: int,
        begin: float,
    ) -> None:
        """Say that a call was answered."""
        words = [operation, call.get("TargetModel", ""), variant.name if variant else ""]
        took = f"{1000 * (time.monotonic() - begin):.0f} ms"
        self.say(" ".join(filter(None, [*words, str(status), "in", took])))

    def control(self) -> Response:
        """Answer DescribeEndpoint of `sagemaker`, which waiters and the SDK ask."""
        body = drained(self.endpoint.limits.max_body)
        if request.headers.get("X-Amz-Target") != "SageMaker.DescribeEndpoint":
            return unknown_operation()
        try:
            name = str(json.loads(body)["EndpointName"])
        except (ValueError, KeyError, TypeError):
            return refused(validation_error("EndpointName is missing"))
        return Response(json.dumps(self.description(name)), mimetype="application/x-amz-json-1.1")

    def description(self, name: str) -> dict[str, Any]:
        endpoint = self.endpoint
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}"
        described = {
            "EndpointName": name,
            "EndpointArn": f"{arn}:endpoint/{name}",
            "EndpointConfigName": name,
            "EndpointStatus": endpoint.status,
            "CreationTime": endpoint.begin,
            "LastModifiedTime": endpoint.begin,
            "ProductionVariants": [
                {
                    "VariantName": one.name,
                    "CurrentWeight": one.weight,
                    "DesiredWeight": one.weight,
                    "CurrentInstanceCount": 1,
                    "DesiredInstanceCount": 1,
                }
                for one in endpoint.variants
            ],
        }
        for one in endpoint.variants:
            if one.health.state == FAILED:
                described["FailureReason"] = failure_reason(one)
        return described


def in_utf_8(value: str) -> str:
    """Return a header as boto3 has sent it, in UTF-8; WSGI takes headers for Latin-1."""
    with suppress(UnicodeError):
        return value.encode("latin-1").decode()
    return value


def failure_reason(variant: Variant) -> str:
    """Return in the service's words, and in ours, why a variant did not get into service."""
    return (
        f"The primary container for production variant {variant.name} did not pass the ping health "
        f"check. Please check CloudWatch logs for this endpoint. {variant.health.reason}"
    )


def whole(name: str, answer: Answer, until: float) -> Response:
    """Return a container's answer in one piece.

    Raises:
        Refused: it does not come to its end in time.

    """
    with as_model_errors(name):
        response = Response(answer.read(until), answer.status)
    response.headers.pop("Content-Type")
    if "Content-Type" in answer.headers:
        response.headers["Content-Type"] = answer.headers["Content-Type"]
    return response


def drained(limit: int) -> bytes:
    """Return the body of the current request, which is read to its end in any case.

    Raises:
        Refused: it is longer than the limit, if there is one.

    """
    kept = bytearray()
    size = 0
    while piece := request.stream.read(PIECE):
        size += len(piece)
        if size <= limit:
            kept += piece
    if limit and size > limit:
        raise too_large(limit)
    return bytes(kept)


def refused(error: Refused) -> Response:
    response = Response(json.dumps(error.body()), error.status, mimetype="application/json")
    response.headers["x-amzn-ErrorType"] = error.name
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
    return response


def unknown_operation() -> Response:
    asked = request.headers.get("X-Amz-Target") or f"{request.method} {request.path}"
    text = (
        f"`emulate` does not answer {asked[:100]}; it answers "
        f"{', '.join(OPERATIONS.values())} and DescribeEndpoint"
    )
    response = Response(json.dumps({"Message": text}), 404, mimetype="application/json")
    response.headers["x-amzn-ErrorType"] = "UnknownOperationException"
    return response


class Quiet(WSGIRequestHandler):
    """Logs nothing: the service says itself what it answers."""

    def log(self, *_: Any) -> None:
        pass


def server(app: Flask, listening: socket.socket) -> BaseWSGIServer:
    """Return a server with a thread for each connection."""
    host, port = listening.getsockname()[:2]
    return make_server(host, port, app, threaded=True, request_handler=Quiet, fd=listening.fileno())
