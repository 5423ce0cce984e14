"""Checks of single requests: headers, sizes, errors and streams."""

from __future__ import annotations

import re
from http import HTTPStatus

from sagemaker_emulator.conformance.exchange import Failed, NotApplicable, Request
from sagemaker_emulator.conformance.report import check
from sagemaker_emulator.conformance.subject import Subject
from sagemaker_emulator.emulate.contract import (
    CUSTOM_ATTRIBUTES,
    INFERENCE_ID,
    MAX_MESSAGE,
    SESSION_ID,
    TARGET_VARIANT,
)
from sagemaker_emulator.host.calls import NoAnswer
from sagemaker_emulator.host.limits import MB

MOST_ATTRIBUTES = 1024
HEADERS = {
    CUSTOM_ATTRIBUTES: ("trace-0123456789~" * 61)[:MOST_ATTRIBUTES],
    INFERENCE_ID: "i" * 64,
    SESSION_ID: "s" * 256,
    TARGET_VARIANT: "AllTraffic",
    "X-Amzn-Trace-Id": "Root=1-67891233-abcdef012345678912345678",
    "X-Amzn-SageMaker-Not-Yet-Known": "1",
    "X-Request-Something": "x" * 500,
    "User-Agent": "AHC/2.0",
}
MORE_BYTES = 5 * MB  # over the limit
STREAMS = ("text/event-stream", "application/jsonlines", "application/x-ndjson")
QUICK_S = 0.3  # a stream that is over sooner shows nothing
GARBAGE = (
    Request(b'{"broken', "application/json"),
    Request(b"", "application/json"),
    Request(b'{"' + b"long " * 4000, "application/json"),
    Request(b"\xff\x00\xfe", "application/octet-stream"),
    Request(b"x", "application/x-not-known-anywhere"),
)


@check("invocations.answered")
def answered(subject: Subject) -> str:
    if subject.request is None:
        subject.good_request()
    if subject.later.good:
        return f"{subject.later.status} in {subject.later.last_s:.2f} s"
    raise Failed(f"got: {subject.later}")


@check("headers.taken")
def headers_change_nothing(subject: Subject) -> str:
    try:
        reply = subject.invoke(subject.any_request(), HEADERS)
    except NoAnswer as error:
        raise Failed(f"{error}; without them it is {subject.usual_status}") from error
    if reply.status != subject.usual_status:
        raise Failed(f"it is answered with {reply}; without them it is {subject.usual_status}")
    came = reply.headers.get(CUSTOM_ATTRIBUTES, "")
    if len(came) > MOST_ATTRIBUTES or not re.fullmatch("[ -~]*", came):
        raise Failed(f"its own {CUSTOM_ATTRIBUTES} has {len(came)} characters: {came[:100]!r}")
    return f"{subject.usual_status}, as without them"


def pad(request: Request, size: int) -> Request:
    """Return a request with as many bytes; spaces at its end change neither JSON nor text."""
    textual = "json" in request.content_type or request.content_type.startswith("text/")
    body = request.body.ljust(size, b" " if textual else b"\0")
    return Request(body, request.content_type, request.accept)


@check("sizes.largest")
def largest_body_is_taken(subject: Subject) -> str:
    limit = subject.limits.max_body
    reply = subject.invoke(pad(subject.any_request(), limit))
    too_large = reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if too_large or (reply.status >= 500 and reply.status != subject.usual_status):
        raise Failed(f"{limit / MB:.0f} MB are answered with {reply}")
    subject.must_be_well()
    return f"{limit / MB:.0f} MB are answered with {reply.status} in {reply.last_s:.2f} s"


@check("sizes.over")
def larger_body_is_refused(subject: Subject) -> str:
    if subject.failed("sizes.largest"):
        raise NotApplicable("see sizes.largest")
    size = subject.limits.max_body + MORE_BYTES
    reply = subject.invoke(pad(subject.any_request(), size))
    if reply.status >= 500 and reply.status != subject.usual_status:
        raise Failed(f"{size / MB:.0f} MB are answered with {reply}")
    subject.must_be_well()
    return f"{size / MB:.0f} MB are answered with {reply.status}"


@check("errors.answered")
def garbage_is_answered(subject: Subject) -> str:
    subject.any_request()
    errors = []
    for request in GARBAGE:
        try:
            reply = subject.invoke(request)
        except NoAnswer as error:
            raise Failed(f"{request.body[:20]!r} as {request.content_type}: {error}") from error
        errors += [reply] if reply.status >= 400 else []
    longest = max((one.body.decode(errors="replace") for one in errors), key=len, default="")
    if len(longest) > MAX_MESSAGE:
        raise Failed(f"an error has {len(longest)} characters; it begins: {longest[:80]!r}")
    subject.must_be_well()
    statuses = sorted({one.status for one in errors})
    return f"{len(GARBAGE)} bodies, {len(errors)} of them refused with {statuses or 'nothing'}"


@check("streaming.unbuffered")
def stream_is_not_buffered(subject: Subject) -> str:
    given = subject.settings.stream
    request = given or subject.good_request()
    reply = subject.invoke(request, seconds=subject.limits.stream_s)
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
