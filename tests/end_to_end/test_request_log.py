"""The line of the log for every request."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.telemetry.telemetry import Metrics
from tests.conftest import Endpoint, wait_for
from tests.support.front import front
from tests.support.telemetry import difference, lines_of, scraped, settled, value

SECRET = "a-text-that-only-the-caller-may-see"


def logged(endpoint: Endpoint, path: str, body: str | None, request_id: str, **headers: str) -> Any:
    headers["X-Request-Id"] = request_id
    answer = endpoint.call(path, body, headers=headers)
    (line,) = lines_of(endpoint, request_id)
    assert line["status"] == answer.status
    return line


def test_a_request_has_one_line_with_all_that_is_known(seen: Endpoint) -> None:
    body = json.dumps({"modelname": "double", "modelversion": 1, "payload": {"numbers": [1]}})
    before = time.time()
    line = logged(seen, "/invocations", body, "log-1")
    at = line.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    taken = time.mktime(time.strptime(at[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    assert before - 1 <= taken <= time.time()
    times = {name: line.pop(name) for name in list(line) if name.endswith("_s")}
    phases = {"queue_s", "decode_s", "class_s", "inference_s", "postprocess_s", "total_s"}
    assert set(times) == phases
    assert 0 < sum(times.values()) - times["total_s"] <= times["total_s"]
    assert line == {
        "program": "dispatcher",
        "level": "info",
        "request_id": "log-1",
        "method": "POST",
        "route": "/invocations",
        "model": "double",
        "version": "1",
        "status": 200,
        "bytes_in": len(body),
        "bytes_out": len('{"modelname":"double","result":[2.0],"modelversion":"1"}'),
    }


@pytest.mark.parametrize("form", ["lines", "requests"])
def test_an_answer_that_json_cannot_hold_is_counted_as_it_is_sent(
    seen: Endpoint, form: str
) -> None:
    before = settled(seen)
    asks = [{"modelname": "odd", "payload": {"numbers": [n]}} for n in (1, 2, 3)]
    kind = "application/jsonlines" if form == "lines" else "application/json"
    body = "\n".join(map(json.dumps, asks)) if form == "lines" else json.dumps({"requests": asks})
    answer = seen.call(
        "/invocations", body, headers={"Content-Type": kind, "X-Request-Id": f"odd-{form}"}
    )
    lines = answer.body.decode().splitlines()
    each = [json.loads(x) for x in lines] if form == "lines" else answer.json["results"]
    assert [one["status"] for one in each] == [200, 500, 500]
    for one in each[1:]:
        assert one["error"]["request_id"] == f"odd-{form}"
        assert one["modelname"] == one["error"]["modelname"] == "odd"
    (line,) = lines_of(seen, f"odd-{form}")
    assert (line["items"], line["failed"]) == (3, 2)
    now = difference(settled(seen), before)
    assert value(now, "dispatcher_items_total", model="odd", status="200") == 1
    assert value(now, "dispatcher_items_total", model="odd", status="500") == 2


@pytest.mark.parametrize("form", ["lines", "list"])
def test_of_a_caller_who_leaves_in_the_middle_the_log_says_so(seen: Endpoint, form: str) -> None:
    payload = {"seconds": [0.05]}
    if form == "lines":
        body = "\n".join([json.dumps({"modelname": "sleeps", "payload": payload})] * 200)
    else:
        body = json.dumps({"modelname": "sleeps", "payload": [payload] * 200})
    with socket.create_connection(("127.0.0.1", seen.port)) as caller:
        kind = "application/jsonlines" if form == "lines" else "application/json"
        caller.sendall(
            f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: {kind}\r\nAccept: application/jsonlines\r\n"
            f"X-Request-Id: left-{form}\r\n\r\n{body}".encode()
        )
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    wait_for(lambda: f"left-{form}" in seen.log.read_text(), "its line")
    for line in lines_of(seen, f"left-{form}"):
        assert (line["status"], line["code"]) == (499, "caller_gone")
        assert 0 < line["items"] < 200
        assert line["failed"] == 0


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("application/json", ""),
        ("application/json", "Content-Encoding: gzip\r\n"),
        ("multipart/form-data; boundary=b", ""),
    ],
)
def test_a_body_that_its_caller_leaves_in_the_middle_is_not_blamed(
    seen: Endpoint, kind: str, headers: str
) -> None:
    """As NGINX hands it on: it had the whole, and closes as soon as its caller has gone."""
    sent = '{"modelname": "double", "payload": {"numbers": [1]}}'
    name = f"cut-{len(kind)}-{len(headers)}"
    with socket.socket(socket.AF_UNIX) as nginx:
        nginx.connect(str(seen.log.parent / "gunicorn.sock"))
        nginx.sendall(
            f"POST /infer/double HTTP/1.1\r\nHost: x\r\nX-Request-Start: {time.time()}\r\n"
            f"Content-Length: 1000\r\nContent-Type: {kind}\r\n{headers}"
            f"X-Request-Id: {name}\r\n\r\n{sent}".encode()
        )
    wait_for(lambda: name in seen.log.read_text(), "its line")
    (line,) = lines_of(seen, name)
    assert (line["status"], line["code"]) == (499, "caller_gone")


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        ("/infer/no-such", '{"payload": {}}', 404, "unknown_model", "no-such"),
        ("/infer/fails", '{"payload": {"numbers": [1]}}', 502, "model_failed", "it fell over"),
        ("/infer/breaks", '{"payload": {"numbers": [1]}}', 500, "client_failed", "unexpected"),
        ("/nowhere?key=1", None, 404, "not_found", "there is no route"),
        ("/infer/double", json.dumps({"payload": SECRET}), 400, "bad_body", None),
        ("/infer/double", json.dumps({"payload": {"numbers": SECRET}}), 400, "bad_payload", None),
        ("/invocations", SECRET, 415, "unsupported_type", None),
    ],
)
def test_an_error_says_what_it_was_but_never_what_was_sent(
    seen: Endpoint, path: str, body: str | None, status: int, code: str, message: str | None
) -> None:
    request_id = f"log-{code}-{len(body or '')}"
    line = logged(seen, path, body, request_id, **{"x-api-key": "a-key-of-the-caller"})
    assert (line["status"], line["code"]) == (status, code)
    assert line["level"] == {500: "error", 502: "warning"}.get(status, "info"), "whose fault it was"
    assert "message" not in line if message is None else message in line["message"]
    assert line.get("path", "/nowhere") == "/nowhere"
    log = seen.log.read_text()
    assert SECRET not in log
    assert "a-key-of-the-caller" not in log


def test_nginx_and_the_dispatcher_do_not_tell_the_same_twice(seen: Endpoint) -> None:
    line = logged(seen, "/ping", None, "log-ping")
    assert line["program"] == "dispatcher"
    line = logged(seen, "/invocations", " " * (26 * 2**20), "log-large")
    assert (line["program"], line["status"], line["code"]) == ("nginx", 413, "too_large")
    assert (line["method"], line["path"]) == ("POST", "/invocations")


def test_without_a_collector_nothing_of_it_is_there(seen: Endpoint) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = json.dumps({"modelname": "double", "payload": {"numbers": [1]}})
    answer = seen.call("/invocations", body, headers={"traceparent": parent, "X-Request-Id": "o"})
    assert answer.status == 200
    assert "traceparent" not in answer.headers
    assert "X-Amzn-SageMaker-Custom-Attributes" not in answer.headers
    (line,) = lines_of(seen, "o")
    assert "trace_id" not in line
    assert b"trace" not in seen.call("/metrics").body


@pytest.fixture(scope="module")
def in_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One whose log is JSON, and has requests only where they failed."""
    settings = {"MODEL_SERVER_ACCESS_LOG": "errors", "MODEL_SERVER_TIMEOUT": "5"}
    with front(tmp_path_factory.mktemp("json"), LOG_FORMAT="json", **settings) as endpoint:
        yield endpoint


def test_a_call_that_hangs_is_told_when_its_caller_was_answered(
    in_json: Endpoint, tmp_path: Path
) -> None:
    comes_back = tmp_path / "comes back"
    body = json.dumps({"payload": {"seconds": [0], "until": str(comes_back)}})
    path = "/infer/sleeps?timeout_ms=500"
    assert in_json.call(path, body, headers={"X-Request-Id": "hangs"}).status == 504
    (line,) = lines_of(in_json, "hangs")
    assert (line["status"], line["code"]) == (504, "deadline_exceeded")
    assert line["model"] == "sleeps"
    now = scraped(in_json)
    assert value(now, "dispatcher_request_seconds_count", model="sleeps", status="504") == 1
    assert value(now, "dispatcher_requests_in_flight") == 1
    assert '"/metrics"' not in in_json.log.read_text(), "it was answered well"
    comes_back.touch()
    assert len(lines_of(in_json, "hangs")) == 1
    assert value(scraped(in_json), "dispatcher_requests_total", model="sleeps") == 1


def test_a_traceback_is_one_line_of_json_where_all_is_json(in_json: Endpoint) -> None:
    body = json.dumps({"payload": {"numbers": [1]}})
    headers = {"X-Request-Id": "breaks"}
    assert in_json.call("/infer/breaks", body, headers=headers).status == 500
    wait_for(lambda: "ZeroDivisionError" in in_json.log.read_text(), "the traceback")
    lines = in_json.log.read_text().splitlines()
    (found,) = [json.loads(line) for line in lines if "ZeroDivisionError" in line]
    assert (found["program"], found["level"]) == ("dispatcher", "error")
    assert "breaks" in found["message"]
    assert "Traceback" in found["message"]
    assert "raise ZeroDivisionError" in found["message"]


FORGED = json.dumps({"program": "dispatcher", "request_id": "forged", "status": 200})


@pytest.mark.parametrize("form", ["seen", "in_json"])
@pytest.mark.parametrize("how", ["raise", "print", "log"])
def test_nothing_that_a_caller_sends_becomes_a_line_of_its_own(
    how: str, form: str, request: pytest.FixtureRequest
) -> None:
    endpoint: Endpoint = request.getfixturevalue(form)
    text = f"{how} \n{FORGED}\rserve: Triton died\nend of {how}"
    endpoint.call("/infer/echoes", json.dumps({"payload": {"text": text}}))
    wait_for(lambda: f"end of {how}" in endpoint.log.read_text(), "the line")
    for line in endpoint.log.read_text().rpartition("\n")[0].splitlines():
        assert line.startswith(("{", "gunicorn: ", "nginx: "))
        assert not line.startswith("{") or json.loads(line).get("request_id") != "forged"


def test_without_a_log_there_are_no_lines(tmp_path: Path) -> None:
    with front(tmp_path, MODEL_SERVER_ACCESS_LOG="off") as endpoint:
        endpoint.call("/ping")
        endpoint.call("/invocations", " " * (26 * 2**20))
        done = threading.Event()
        done.wait(0.5)
        assert "{" not in endpoint.log.read_text()


def test_a_name_that_no_page_can_hold_is_counted_as_others() -> None:
    metrics = Metrics()
    metrics.item("half \ud800", 200)
    metrics.item("whole", 200)
    page = metrics.page().decode()
    assert 'dispatcher_items_total{model="other",status="200"} 1.0' in page
    assert 'dispatcher_items_total{model="whole",status="200"} 1.0' in page
