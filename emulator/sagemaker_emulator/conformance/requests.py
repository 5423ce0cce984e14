"""Checks of single requests: headers, sizes, errors, streams, and the optional routes."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Mapping
from http import HTTPStatus

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Reply, Request
from sagemaker_emulator.conformance.report import Check
from sagemaker_emulator.conformance.starting import must_be_an_image
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.emulate.contract import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    MAX_MESSAGE,
    SESSION_ID,
    TARGET_VARIANT,
)
from sagemaker_emulator.host.calls import CONNECT_S, NoAnswer, ask
from sagemaker_emulator.host.limits import MB

MOST_ATTRIBUTES = 1024
UNKNOWN = {
    "X-Amzn-Trace-Id": "Root=1-67891233-abcdef012345678912345678",
    "X-Amzn-SageMaker-Not-Yet-Known": "1",
    "X-Request-Something": "x" * 500,
    "User-Agent": "AHC/2.0",
}
MORE_BYTES = 5 * MB  # over the limit
BIDIRECTIONAL = "/invocations-bidirectional-stream"
STREAMS = ("text/event-stream", "application/jsonlines", "application/x-ndjson")
QUICK_S = 0.3  # a stream that is over sooner shows nothing
STRATEGIES = {"MULTI_RECORD", "SINGLE_RECORD"}
GARBAGE = (
    Request(b'{"broken', "application/json"),
    Request(b"", "application/json"),
    Request(b'{"' + b"long " * 4000, "application/json"),
    Request(b"\xff\x00\xfe", "application/octet-stream"),
    Request(b"x", "application/x-not-known-anywhere"),
)


def answered(subject: Subject) -> str:
    """See that a request that should be answered well is."""
    if subject.request is None:
        subject.good_request()
    if isinstance(subject.later, Reply) and subject.later.good:
        return f"{subject.later.status} in {subject.later.last_s:.2f} s"
    raise Failed(f"got: {subject.later}")


def same_with(subject: Subject, headers: Mapping[str, str]) -> Reply:
    """Send the usual request with more headers.

    Raises:
        Failed: it is not answered as without them.

    """
    try:
        reply = subject.invoke(subject.any_request(), headers)
    except NoAnswer as error:
        raise Failed(f"{error}; without them it is {subject.usual_status}") from error
    if reply.status != subject.usual_status:
        raise Failed(f"it is answered with {reply}; without them it is {subject.usual_status}")
    return reply


def unknown_headers_are_ignored(subject: Subject) -> str:
    """See that headers that it does not know change nothing."""
    same_with(subject, UNKNOWN)
    return f"{subject.usual_status}, as without them"


def long_attributes_are_taken(subject: Subject) -> str:
    """See that the service's own headers are taken at their full length."""
    headers = {
        CUSTOM_ATTRIBUTES: ("trace-0123456789~" * 61)[:MOST_ATTRIBUTES],
        INFERENCE_ID: "i" * 64,
        SESSION_ID: "s" * 256,
        TARGET_VARIANT: "AllTraffic",
    }
    reply = same_with(subject, headers)
    came = reply.headers.get(CUSTOM_ATTRIBUTES, "")
    if len(came) > MOST_ATTRIBUTES or not re.fullmatch("[ -~]*", came):
        raise Failed(f"its own {CUSTOM_ATTRIBUTES} has {len(came)} characters: {came[:100]!r}")
    return f"{subject.usual_status}, as without them"


def padded(request: Request, size: int) -> Request:
    """Return a request with as many bytes; spaces at its end change neither JSON nor text."""
    textual = "json" in request.content_type or request.content_type.startswith("text/")
    body = request.body.ljust(size, b" " if textual else b"\0")
    return Request(body, request.content_type, request.accept)


def largest_body_is_taken(subject: Subject) -> str:
    """See that a body of 25 MB is read and answered."""
    limit = subject.limits.max_body
    try:
        reply = subject.invoke(padded(subject.any_request(), limit))
    except NoAnswer as error:
        raise Failed(f"{limit / MB:.0f} MB: {error}") from error
    too_large = reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if too_large or (reply.status >= 500 and reply.status != subject.usual_status):
        raise Failed(f"{limit / MB:.0f} MB are answered with {reply}")
    subject.must_be_well()
    return f"{limit / MB:.0f} MB are answered with {reply.status} in {reply.last_s:.2f} s"


def larger_body_is_refused(subject: Subject) -> str:
    """See that a larger body gets an answer, and harms nobody."""
    if subject.failed("sizes.largest"):
        raise NotApplicable("see sizes.largest")
    size = subject.limits.max_body + MORE_BYTES
    try:
        reply = subject.invoke(padded(subject.any_request(), size))
    except NoAnswer as error:
        raise Failed(f"{size / MB:.0f} MB: {error}") from error
    if reply.status >= 500 and reply.status != subject.usual_status:
        raise Failed(f"{size / MB:.0f} MB are answered with {reply}")
    subject.must_be_well()
    return f"{size / MB:.0f} MB are answered with {reply.status}"


def garbage_is_answered(subject: Subject) -> str:
    """See that bodies that cannot be right are answered, and harm nobody."""
    subject.any_request()
    errors = []
    for request in GARBAGE:
        try:
            reply = subject.invoke(request)
        except NoAnswer as error:
            raise Failed(f"{request.body[:20]!r} as {request.content_type}: {error}") from error
        errors += [reply] if reply.status >= 400 else []
    subject.kept["errors"] = errors
    subject.must_be_well()
    statuses = sorted({one.status for one in errors})
    return f"{len(GARBAGE)} bodies, {len(errors)} of them refused with {statuses or 'nothing'}"


def errors_are_short(subject: Subject) -> str:
    """See that errors fit into what a caller is shown."""
    errors: list[Reply] = subject.kept.get("errors", [])
    if not errors:
        raise NotApplicable("no error could be provoked")
    longest = max((one.body.decode(errors="replace") for one in errors), key=len)
    if len(longest) > MAX_MESSAGE:
        raise Failed(f"an error has {len(longest)} characters; it begins: {longest[:80]!r}")
    return f"the longest of {len(errors)} has {len(longest)} characters"


def stream_is_not_buffered(subject: Subject) -> str:
    """See that the first bytes of a stream come long before the last."""
    given = subject.settings.stream is not None
    request = subject.stream or subject.good_request()
    try:
        reply = subject.invoke(request, seconds=subject.limits.stream_s)
    except NoAnswer as error:
        raise Failed(str(error)) from error
    if not reply.good:
        raise Failed(f"it is answered with {reply}") if given else NotApplicable(f"got: {reply}")
    kind = reply.headers.get("Content-Type", "").partition(";")[0].strip()
    if not given and kind not in STREAMS:
        raise NotApplicable("no answer is a stream; give a request for one with --stream-body")
    if "Content-Length" in reply.headers:
        raise Failed(f"it came in one piece, with Content-Length, after {reply.last_s:.2f} s")
    if reply.last_s < QUICK_S:
        raise NotApplicable("it was over too soon; give a longer one with --stream-body")
    text = f"the first byte after {reply.first_s:.2f} s, the last after {reply.last_s:.2f} s"
    if reply.last_s - reply.first_s < reply.last_s / 10:
        raise Failed(text)
    return text


def batch_parameters_are_right(subject: Subject) -> str:
    """`GET /execution-parameters`, where there is such a route, says what batch jobs read."""
    try:
        reply = subject.ask("GET", "/execution-parameters")
    except NoAnswer as error:
        raise Failed(str(error)) from error
    if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise NotApplicable("it has no such route, and needs none")
    try:
        found = json.loads(reply.body) if reply.good else None
    except ValueError:
        found = None
    if not isinstance(found, dict) or not right_parameters(found):
        raise Failed(f"it is answered with {reply}")
    return json.dumps(found)


def right_parameters(found: Mapping[str, object]) -> bool:
    at_once, payload = found.get("MaxConcurrentTransforms", 1), found.get("MaxPayloadInMB", 6)
    return (
        isinstance(at_once, int)
        and at_once > 0
        and isinstance(payload, int)
        and payload >= 0
        and found.get("BatchStrategy", "MULTI_RECORD") in STRATEGIES
    )


def bidirectional_route_and_label_agree(subject: Subject) -> str:
    """See that the label is there if a WebSocket is, and only then."""
    must_be_an_image(subject)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    begin = time.monotonic()
    try:
        until = begin + subject.limits.ping_s
        answer = ask(subject.address, "GET", BIDIRECTIONAL, headers=headers, until=until)
        answer.close()
        status, came = answer.status, str(answer.status)
    except NoAnswer as error:
        status, came = 0, str(error)
    took, there = time.monotonic() - begin, status == HTTPStatus.SWITCHING_PROTOCOLS
    labelled = subject.labelled("bidirectional-streaming")
    if labelled and not there:
        raise Failed(f"the image has the label, but the route answers {came}")
    if there and not labelled:
        raise Failed("the route is there, but not the label")
    if not there:
        raise NotApplicable("it has neither the label nor the route")
    if took > CONNECT_S:
        raise Failed(f"the upgrade took {1000 * took:.0f} ms")
    return f"upgraded after {1000 * took:.0f} ms"


REQUESTS = (
    Check(
        "invocations.answered",
        answered,
        asked="POST /invocations with a request that is right",
        why="nothing else about answers can be seen without one",
        fix="listen at /invocations; look at the request of --body and --content-type",
    ),
    Check(
        "headers.unknown",
        unknown_headers_are_ignored,
        asked=f"the same request with {', '.join(UNKNOWN)}",
        why="the service sends headers that the container was not written for",
        fix="ignore headers that you do not know",
    ),
    Check(
        "headers.attributes",
        long_attributes_are_taken,
        asked="the same request with custom attributes of 1,024 characters, an inference id of 64 "
        "and a session id of 256",
        why="callers may send as much",
        fix="allow headers of 4 KB and more; send back at most 1,024 visible ASCII characters",
    ),
    Check(
        "sizes.largest",
        largest_body_is_taken,
        asked="a body of 25 MB, the most that the service passes on",
        why="servers have lower limits by default: 1 MB in NGINX, 100 MB or less elsewhere",
        fix="client_max_body_size 25m in NGINX, and the like behind it; enough memory for it",
    ),
    Check(
        "sizes.over",
        larger_body_is_refused,
        asked="a body of 30 MB: an answer, and the server lives",
        why="asynchronous endpoints and batch jobs send larger ones; one must not end the server",
        fix="answer 413 once Content-Length is read, and read the rest away",
    ),
    Check(
        "errors.answered",
        garbage_is_answered,
        asked="bodies that cannot be right: an answer to each, and the server lives",
        why="without one the caller waits for 60 s and reads nothing that helps",
        fix="catch errors of decoding, and answer 400",
    ),
    Check(
        "errors.length",
        errors_are_short,
        asked="for errors of at most 2,048 characters",
        why="the caller sees that many in OriginalMessage; the rest is cut off",
        fix="what is wrong goes first; no traceback, no copy of the request",
    ),
    Check(
        "streaming.unbuffered",
        stream_is_not_buffered,
        asked="for an answer in pieces, the first of them before the last is made",
        why="InvokeEndpointWithResponseStream passes on what comes; buffered, it all comes late",
        fix="chunked transfer; proxy_buffering off in NGINX, or X-Accel-Buffering: no",
    ),
    Check(
        "batch.parameters",
        batch_parameters_are_right,
        asked="GET /execution-parameters: MaxConcurrentTransforms, BatchStrategy, MaxPayloadInMB",
        why="batch transform asks it first; where it is there, it must be right",
        fix='answer {"MaxConcurrentTransforms": 1, "BatchStrategy": "MULTI_RECORD", '
        '"MaxPayloadInMB": 6} in JSON, or 404',
    ),
    Check(
        "bidirectional.label",
        bidirectional_route_and_label_agree,
        asked=f"for a WebSocket at {BIDIRECTIONAL}, within 250 ms, where the image has the label",
        why="the service opens it only with the label, and fails where the route is missing",
        fix="have both, or neither",
    ),
)
