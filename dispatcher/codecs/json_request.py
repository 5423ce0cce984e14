"""Reads JSON: the documented body, the V2 one, lists of requests, and JSON lines."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import IO, Any

from clients.errors import DeadlineExceeded, InferenceError, TooManyRequests
from clients.request import SEQUENCE_NAMES, SentRows
from clients.tensors.quoting import brief
from dispatcher.codecs.media import UTF_16_MARKS, utf_16_error
from dispatcher.codecs.metadata import TIMEOUT_PARAMETER, Metadata
from dispatcher.errors import BadBody
from dispatcher.model_request import InferenceRequest, ModelRequest, RequestList, SeveralModels
from dispatcher.telemetry.memory import free_memory, total_memory

BODY_HINT = 'expected {"modelname": "resnet", "payload": {"img": "<base64 of a picture>"}}'
SEVERAL_HINT = (
    "send several requests as application/jsonlines, each on a line of its own, or in a list: "
    '{"requests": [{"modelname": …, "payload": …}, …]}'
)
FIELDS = ("modelname", "modelversion", "parameters", "payload", "output")
INSTANCES = "instances"  # the platform's own name of `payload`, where it is a list
OBJECT_FIELDS = frozenset({"s3_key", "s3_uri", "img_url"})  # in the payload, or in its place
# Other names for them, in lower case, without "_" and "-".
SIMILAR_FIELDS = {
    "model": "modelname",
    "version": "modelversion",
    **{name: name for name in FIELDS},
}

# Python's JSON parser holds the interpreter lock from the first byte to the last: eight bodies of
# 25 MiB blocked all other threads for 13 s. So large bodies are parsed one at a time, with a pause
# for other threads after a long one.
LONG_PARSE_S = 0.1  # never reached by pictures in base64, each one long text
PAUSE_S = 0.02
LARGE_BODY = 2**20  # bytes
large_body_lock = threading.Lock()

# What JSON takes while it is parsed, at least its true size: bytes for each byte, more where a
# character of a text may take four, and for each mark that begins a list or an object, or stands
# beside a value or a text. (`[[],[],…]` takes 24 times its length, `[{"":1},…]` 30 times.)
PARSED_BYTE, PARSED_WIDE_BYTE = 3, 9
PARSED_MARKS = {b"[": 72, b"{": 150, b",": 32, b'"': 28}
# Of the memory, and of what is free of it, for one body: there are four web workers at most, by
# default, and each parses one large body at a time.
PARSED_SHARE = 1 / 4

# JSON lines: 25 MiB have this many of 262 bytes each. As many as fit, of two bytes each, would keep
# a core busy for minutes.
MAX_BATCH = 1000  # payloads in one request, which are not rows
MAX_LINES = 100_000
MAX_IN_MEMORY = 2**20  # bytes of a decompressed or streamed body that are kept in memory
CHUNK = 2**16


def read_json(body: bytes, metadata: Metadata) -> InferenceRequest:
    """Read a JSON body of any form.

    Raises BadBody: it is not JSON, or a field is missing, unknown or of the wrong type.
    """
    document = parse_object(body, metadata.time_limit.deadline(), rows=True)
    if "requests" in document:
        return read_request_list(document, metadata)
    names = document.get("modelname")
    if isinstance(names, list):
        return read_several_models(document, names, metadata)
    return read_model_request(document, metadata)


def parse_json(body: bytes, deadline: float) -> Any:
    """Parse JSON.

    Raises BadBody: it takes more memory than there is for one body.
    Raises TooManyRequests: it takes more memory than there is now.
    Raises ValueError: it is not JSON.
    Raises RecursionError: it is nested too deeply.
    """
    if (needed := estimate_size(body)) <= LARGE_BODY:
        return json.loads(body)
    left = max(0.0, deadline - time.monotonic())
    if not large_body_lock.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
        raise DeadlineExceeded(
            "the time for this request was used up while other large bodies were read",
            hint="send fewer large bodies at a time",
        )
    try:
        check_memory(needed)
        began = time.monotonic()
        try:
            return json.loads(body)
        finally:
            if time.monotonic() - began > LONG_PARSE_S:
                time.sleep(PAUSE_S)
    finally:
        large_body_lock.release()


def estimate_size(body: bytes) -> int:
    """Return how many bytes JSON takes while it is parsed, at most."""
    wide = not body.isascii() or b"\\u" in body
    marks = sum(each * body.count(mark) for mark, each in PARSED_MARKS.items())
    return (PARSED_WIDE_BYTE if wide else PARSED_BYTE) * len(body) + marks


def check_memory(needed: int) -> None:
    hint = "send fewer values in one request; tensors take the least in binary"
    if needed > total_memory() * PARSED_SHARE:
        raise BadBody(
            "the body has so many lists, objects and values that it would take too much memory",
            hint=hint,
        )
    if needed > free_memory() * PARSED_SHARE:
        raise TooManyRequests(
            f"there is no memory now for a body that takes {needed // 2**20} MiB",
            hint=f"try again after Retry-After seconds, or {hint}",
        )


def parse_object(
    body: bytes, deadline: float = math.inf, *, hint: str = BODY_HINT, rows: bool = False
) -> dict[str, Any]:
    """Parse a body that must be a JSON object, or with `rows` a list of them: of lists.

    Raises TooManyRequests: it takes more memory than there is now.
    Raises DeadlineExceeded: other large bodies were parsed until then.
    """
    several = SEVERAL_HINT if hint == BODY_HINT else hint
    try:
        document = parse_json(body, deadline)
    except (ValueError, RecursionError) as error:
        came = f"{len(body)} bytes that begin with {body[:16]!r}" if body else "empty"
        hint = several if "Extra data" in str(error) else hint  # one behind the other
        raise BadBody(f"the body is not JSON ({error}); it is {came}", hint=hint) from error
    if rows and are_rows(document):
        return {"payload": document}
    if not isinstance(document, dict):
        hint = several if isinstance(document, list) else hint
        raise BadBody(f"the body is {brief(document)}, not a JSON object", hint=hint)
    return document


def are_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, list) for one in value)


def read_request_list(document: dict[str, Any], metadata: Metadata) -> RequestList:
    if others := [name for name in document if name != "requests"]:
        raise BadBody(
            f"the body has {brief(others[0])} beside `requests`",
            hint="each request in the list has its own modelname, payload and parameters",
        )
    requests = check_type(document["requests"], "requests", list, "a list of requests")
    check_length(requests, "requests", MAX_BATCH)
    model_requests: list[ModelRequest | InferenceError] = []
    for request in requests:
        try:
            model_requests.append(
                read_model_request(check_type(request, "request", dict, "an object"), metadata)
            )
        except BadBody as error:
            model_requests.append(error)
    return RequestList(model_requests)


def read_several_models(
    document: dict[str, Any], names: list[Any], metadata: Metadata
) -> InferenceRequest:
    check_length(names, "modelname", MAX_BATCH)
    for place, name in enumerate(names):
        check_type(name, f"modelname[{place}]", str, "the name of a model")
    if len(set(names)) < len(names):
        raise BadBody("`modelname` has a name twice", hint="ask each model once")
    if metadata.path_model:
        names = [metadata.path_model]  # the path takes precedence, as for one name
    model_requests = [
        read_model_request({**document, "modelname": name}, metadata, shared=True) for name in names
    ]
    return SeveralModels(model_requests)


def read_model_request(
    document: dict[str, Any], metadata: Metadata, *, shared: bool = False
) -> ModelRequest:
    if TIMEOUT_PARAMETER in document:
        raise BadBody(
            f"the body has {TIMEOUT_PARAMETER}",
            hint="it goes into the query, or into the custom attributes",
        )
    if "inputs" in document and "payload" not in document:
        return read_v2_request(document, metadata)
    if "payload" not in document and (named := OBJECT_FIELDS & document.keys()):
        others = {name: value for name, value in document.items() if name not in named}
        document = {**others, "payload": {name: document[name] for name in named}}
    if "payload" not in document and INSTANCES in document:
        document = {{INSTANCES: "payload"}.get(name, name): one for name, one in document.items()}
    if unknown := [name for name in document if name not in {*FIELDS, *SEQUENCE_NAMES}]:
        meant = SIMILAR_FIELDS.get(unknown[0].lower().replace("_", "").replace("-", ""))
        raise BadBody(
            f"the body has an unknown field {brief(unknown[0])}",
            hint=f"write `{meant}`"
            if meant and meant not in document
            else f"it may have {', '.join(FIELDS)}; the model's input goes into `payload`, such as "
            '{"payload": {"img": …}}, and settings of the model go into `parameters`',
        )
    modelname = read_modelname(document, metadata)
    if "payload" not in document:
        raise BadBody("`payload` is missing", hint=BODY_HINT)
    payloads, is_list = read_payloads(document["payload"])
    if (parameters := document.get("parameters")) is None:
        parameters = {}
    check_type(parameters, "parameters", dict, "an object")
    return ModelRequest(
        modelname=modelname,
        payloads=payloads,
        is_list=is_list,
        parameters=parameters | of_sequence(document),
        modelversion=read_version(document, metadata),
        shared=shared,
        output=read_output(document),
    )


def read_payloads(payload: Any) -> tuple[list[Any], bool]:
    """Return the payloads of a request, and whether they are a list; one `SentRows` for rows."""
    check_type(payload, "payload", dict | list, "an object, or a list of objects")
    if isinstance(payload, dict):
        return [payload], False
    is_table = are_rows(payload)
    check_length(payload, "payload", MAX_LINES if is_table else MAX_BATCH)
    if is_table:
        return [SentRows(payload, header=False, of_csv=False)], True
    for position, one in enumerate(payload):
        check_type(one, f"payload[{position}]", dict, "an object, or a list as a row: [[1, 2]]")
    return payload, True


def read_v2_request(document: dict[str, Any], metadata: Metadata) -> ModelRequest:
    """Read a V2 body, which may name the model in `modelname` too."""
    return ModelRequest(
        modelname=read_modelname(document, metadata),
        payloads=[{name: value for name, value in document.items() if name != "output"}],
        parameters=of_sequence(document.get("parameters")) | of_sequence(document),
        modelversion=read_version(document, metadata),
        tensors=True,
        output=read_output(document),
    )


def of_sequence(document: object) -> dict[str, Any]:
    """Return the fields of an object that name a sequence."""
    fields = document if isinstance(document, dict) else {}
    return {name: fields[name] for name in SEQUENCE_NAMES if name in fields}


def read_modelname(document: dict[str, Any], metadata: Metadata) -> str:
    name = document.get("modelname")
    if name is not None:
        check_type(name, "modelname", str, "the name of a model")
    if not (chosen := metadata.modelname(name)):
        raise BadBody("`modelname` is missing", hint=BODY_HINT)
    return chosen


def check_type(value: Any, name: str, kind: Any, expected: str, hint: str = BODY_HINT) -> Any:
    if not isinstance(value, kind) or value == "":
        raise BadBody(f"`{name}` is {brief(value)}; expected {expected}", hint=hint)
    return value


def read_output(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return where the answer is to be stored; `None` where the body does not say."""
    if "output" not in document:
        return None
    hint = 'write "output": {"s3_key": "results/1.json"}, or "output": {} for a default name'
    return dict(check_type(document["output"], "output", dict, "an object", hint))


def check_length(items: list[Any], name: str, most: int) -> None:
    if not 1 <= len(items) <= most:
        raise BadBody(
            f"`{name}` is a list of {len(items)}", hint=f"expected 1 to {most} in one request"
        )


def read_version(document: Mapping[str, Any], metadata: Metadata) -> str:
    return parse_version(document.get("modelversion")) or parse_version(
        metadata.modelversion or None
    )


def parse_version(value: Any) -> str:
    """Return a version as Triton writes it: 2 and "2" are the same."""
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not is_version(text):
        raise BadBody(
            f"`modelversion` is {brief(value)}", hint="expected a whole number from 1, such as 2"
        )
    return text


def is_version(text: str) -> bool:
    # Triton keeps a version as a signed 64-bit number.
    return text.isascii() and text.isdigit() and text[0] != "0" and int(text[:20]) < 2**63


def read_lines(body: IO[bytes], metadata: Metadata) -> Iterator[ModelRequest | InferenceError]:
    """Yield the request on each line, or the error in it; skip empty lines.

    Raises BadBody: it cannot be split into lines.
    """
    with closing(body):
        start = body.read(2)
        if start.startswith(UTF_16_MARKS) or b"\0" in start:
            raise utf_16_error("body")
        body.seek(0)
        for number, line in enumerate(body):
            if number >= MAX_LINES:
                yield BadBody(
                    f"the body has more than {MAX_LINES:,} lines; the rest was not read",
                    hint="send them in several requests",
                )
                return
            if line.strip():
                try:
                    yield read_model_request(
                        parse_object(line, metadata.time_limit.deadline()), metadata
                    )
                except InferenceError as error:
                    yield error
