"""The service's side: the HTTP interface that boto3 speaks, in front of an endpoint."""

from __future__ import annotations

import json
import logging
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

from flask import Flask, Response, request
from werkzeug.serving import BaseWSGIServer, make_server

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
from sagemaker_emulator.emulate.endpoint import Endpoint, as_model_errors, failure_reason
from sagemaker_emulator.emulate.event_stream import CONTENT_TYPE, model_stream_error, payload_part
from sagemaker_emulator.host.calls import Answer, NoAnswer, TooLate
from sagemaker_emulator.host.health import FAILED
from sagemaker_emulator.host.limits import VARIANT

OPERATIONS = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
}
PIECE = 2**20
SHOWN = 500
say = logging.getLogger(__name__).info


class Service:
    """Answers calls of boto3 to an endpoint, which has any name."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def app(self) -> Flask:
        app = Flask(__name__, static_folder=None)
        app.post("/endpoints/<name>/<path>")(self.call)
        app.post("/")(self.control)
        app.register_error_handler(404, answer_unknown)
        app.register_error_handler(405, answer_unknown)
        return app

    def call(self, name: str, path: str) -> Response:
        """Answer one call of `sagemaker-runtime`."""
        operation = OPERATIONS.get(path, "")
        if not operation:
            drain(0)
            return answer_unknown()
        begin = time.monotonic()
        limits = self.endpoint.limits
        try:
            body = drain(limits.max_body)
            given = {name.lower(): in_utf_8(value) for name, value in request.headers}
            call = members(operation, given)
            self.endpoint.refuse_wrong(name, call)
            answer = self.endpoint.ask(name, body, call, limits.answer_s)
            if operation == "InvokeEndpoint":
                response = read_whole(name, answer, begin + limits.answer_s)
                say_answered(operation, call, 200, begin)
            else:
                pieces = stream(answer, begin, begin + limits.stream_s, call)
                response = Response(pieces, mimetype=CONTENT_TYPE)
                content_type = answer.headers.get("Content-Type", "")
                response.headers[f"{PREFIX}Content-Type"] = content_type
        except Refused as error:
            say(f"{operation} {error.name}: {error.message[:SHOWN]}")
            return answer_refused(error)
        if CUSTOM_ATTRIBUTES in answer.headers:
            response.headers[CUSTOM_ATTRIBUTES] = answer.headers[CUSTOM_ATTRIBUTES]
        response.headers[INVOKED_VARIANT] = VARIANT
        response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
        return response

    def control(self) -> Response:
        """Answer DescribeEndpoint of `sagemaker`, which waiters and the SDK ask."""
        body = drain(self.endpoint.limits.max_body)
        if request.headers.get("X-Amz-Target") != "SageMaker.DescribeEndpoint":
            return answer_unknown()
        try:
            name = str(json.loads(body)["EndpointName"])
        except (ValueError, KeyError, TypeError):
            return answer_refused(validation_error("EndpointName is missing"))
        endpoint = self.endpoint
        described = {
            "EndpointName": name,
            "EndpointArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/{name}",
            "EndpointConfigName": name,
            "EndpointStatus": endpoint.status,
            "CreationTime": endpoint.begin,
            "LastModifiedTime": endpoint.begin,
            "ProductionVariants": [{"VariantName": VARIANT, "CurrentInstanceCount": 1}],
        }
        if endpoint.status == FAILED:
            described["FailureReason"] = failure_reason(endpoint.health)
        return Response(json.dumps(described), mimetype="application/x-amz-json-1.1")


def stream(answer: Answer, begin: float, until: float, call: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the frames of an answer as it comes."""
    count = 0
    try:
        with closing(answer.pieces(until)) as pieces:
            for piece in pieces:
                count += 1
                yield payload_part(piece)
    except NoAnswer as error:
        code = "ModelInvocationTimeExceeded" if isinstance(error, TooLate) else "StreamBroken"
        say(f"InvokeEndpointWithResponseStream: ModelStreamError {code}: {error}")
        yield model_stream_error(code, str(error))
        return
    say_answered(f"InvokeEndpointWithResponseStream ({count} parts)", call, 200, begin)


def say_answered(operation: str, call: Mapping[str, str], status: int, begin: float) -> None:
    took = f"{1000 * (time.monotonic() - begin):.0f} ms"
    say(" ".join(filter(None, [operation, call.get("TargetModel", ""), str(status), "in", took])))


def in_utf_8(value: str) -> str:
    """Return a header as boto3 has sent it, in UTF-8; WSGI takes headers for Latin-1."""
    with suppress(UnicodeError):
        return value.encode("latin-1").decode()
    return value


def read_whole(name: str, answer: Answer, until: float) -> Response:
    """Return a container's answer in one piece; raise Refused where it does not end in time."""
    with as_model_errors(name):
        response = Response(answer.read(until), answer.status)
    response.headers.pop("Content-Type")
    if "Content-Type" in answer.headers:
        response.headers["Content-Type"] = answer.headers["Content-Type"]
    return response


def drain(limit: int) -> bytes:
    """Read the body of the request to its end; raise Refused where it is longer than a limit."""
    kept, size = bytearray(), 0
    while piece := request.stream.read(PIECE):
        size += len(piece)
        if size <= limit:
            kept += piece
    if limit and size > limit:
        raise too_large(limit)
    return bytes(kept)


def answer_refused(error: Refused) -> Response:
    return answer_error(error.name, error.status, error.body())


def answer_error(name: str, status: int, body: Mapping[str, Any]) -> Response:
    response = Response(json.dumps(body), status, mimetype="application/json")
    response.headers["x-amzn-ErrorType"] = name
    response.headers["x-amzn-RequestId"] = str(uuid.uuid4())
    return response


def answer_unknown(_: Exception | None = None) -> Response:
    asked = request.headers.get("X-Amz-Target") or f"{request.method} {request.path}"
    text = (
        f"`emulate` does not answer {asked[:100]}; it answers "
        f"{', '.join(OPERATIONS.values())} and DescribeEndpoint"
    )
    return answer_error("UnknownOperationException", 404, {"Message": text})


def make_web_server(app: Flask, listening: socket.socket) -> BaseWSGIServer:
    """Return a server with a thread for each connection."""
    logging.getLogger("werkzeug").disabled = True  # the service says itself what it answers
    host, port = listening.getsockname()[:2]
    return make_server(host, port, app, threaded=True, fd=listening.fileno())
