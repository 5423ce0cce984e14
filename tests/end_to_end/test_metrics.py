"""What an operator sees: the metrics and the log, on the real NGINX and gunicorn."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.parser import text_string_to_metric_families

from clients.base import Environment
from clients.plugins.registry import Registry
from clients.triton.client import renamed_config
from dispatcher.app import create_app
from dispatcher.gunicorn import hooks as gunicorn_hooks
from dispatcher.observability.metrics import Metrics
from dispatcher.observability.multiprocess import gather_dead, read_settled
from dispatcher.observability.request_log import AccessLog
from dispatcher.readiness.status import Readiness, Status
from dispatcher.readiness.supervisor_status import SupervisorStatus
from dispatcher.settings import read_settings
from tests.conftest import PROJECT, Endpoint, alive, descendants, wait_for
from tests.support.fake_triton import FakeTriton
from tests.support.front import front
from tests.support.probing import triton

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

SECRET = "a-text-that-only-the-caller-may-see"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("seen"), MODEL_SERVER_WORKERS="2") as endpoint:
        yield endpoint


def scraped(endpoint: Endpoint) -> Samples:
    answer = endpoint.call("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the samples with at least these labels."""
    wanted = set(labels.items())
    return sum(v for (n, found), v in samples.items() if n == name and wanted <= found)


def settled(endpoint: Endpoint) -> Samples:
    """Return the metrics when all that was answered is counted: it is after the last byte."""
    found: list[Samples] = []

    def alone() -> bool:
        found[:] = [scraped(endpoint)]
        return value(found[0], "dispatcher_requests_in_flight") == 1

    wait_for(alone, 5, "the end of all requests but the one that asks")
    return found[0]


def difference(after: Samples, before: Samples) -> Samples:
    return {key: number - before.get(key, 0) for key, number in after.items()}


def ask(endpoint: Endpoint, modelname: str, **more: Any) -> int:
    return endpoint.ask(modelname=modelname, payload={"numbers": [1]}, **more).status


def test_counts_are_those_of_the_requests_sent(seen: Endpoint) -> None:
    before = settled(seen)
    with ThreadPoolExecutor(8) as pool:
        asked = ["double"] * 60 + ["fails"] * 30 + [f"no-{n}" for n in range(40)]
        statuses = Counter(pool.map(lambda name: ask(seen, name), asked))
    assert statuses == {200: 60, 502: 30, 404: 40}
    assert seen.call("/infer/double", json.dumps({"payload": {"numbers": [1]}})).status == 200
    assert seen.call("/ping").status == 200
    assert seen.call("/nowhere").status == 404
    assert seen.call("/invocations").status == 405
    now = difference(settled(seen), before)

    def requests(**labels: str) -> float:
        return value(now, "dispatcher_requests_total", **labels)

    asking = {"method": "POST", "route": "/invocations"}
    assert requests(**asking, model="double", status="200") == 60
    assert requests(**asking, model="fails", status="502") == 30
    assert requests(**asking, model="other", status="404") == 40
    assert requests(route="/infer/<model>", model="double", status="200") == 1
    assert requests(method="GET", route="/ping", model="", status="200") == 1
    assert requests(route="", status="404") == 1
    assert requests(route="", status="405") == 1
    assert requests() - requests(route="/metrics") == 60 + 30 + 40 + 4
    for name in ("dispatcher_request_seconds", "dispatcher_queue_seconds"):
        assert value(now, f"{name}_count", model="double", status="200") == 61
        assert value(now, f"{name}_bucket", model="double", status="200", le="+Inf") == 61
        assert value(now, f"{name}_count", model="fails", status="502") == 30
        assert value(now, f"{name}_count", model="other", status="404") == 40
        assert value(now, f"{name}_count") == 131


def test_the_names_of_models_that_are_made_up_do_not_fill_the_memory(seen: Endpoint) -> None:
    before = set(scraped(seen))
    for n in range(50):
        ask(seen, f"made-up-{n}")
        seen.call(f"/made/up/{n}")
        seen.call("/ping", method=f"MADE{chr(65 + n % 26)}")
    added = {key for key in set(scraped(seen)) - before if "made" in str(key).lower()}
    assert not added


def test_the_answers_inside_of_an_answer_are_counted(seen: Endpoint) -> None:
    before = settled(seen)
    one = {"modelname": "double", "payload": {"numbers": [1]}}
    lines = "\n".join(json.dumps(x) for x in [one] * 7 + [one | {"modelname": "fails"}] * 3)
    headers = {"Content-Type": "application/jsonlines"}
    assert seen.call("/invocations", lines + "\nno JSON", headers=headers).status == 200
    assert seen.call("/invocations", json.dumps({"requests": [one, {}]})).status == 200
    several = one | {"modelname": ["double", "fails"]}
    assert seen.call("/invocations", json.dumps(several)).status == 200
    now = difference(settled(seen), before)
    assert value(now, "dispatcher_items_total", model="double", status="200") == 9
    assert value(now, "dispatcher_items_total", model="fails", status="502") == 4
    assert value(now, "dispatcher_items_total", model="", status="400") == 2
    assert value(now, "dispatcher_requests_total", model="several", status="200") == 2
    assert value(now, "dispatcher_requests_total", model="double", status="200") == 1


def test_what_is_known_at_the_moment(seen: Endpoint) -> None:
    now = scraped(seen)
    assert value(now, "dispatcher_canary_ok", model="double") == 1
    assert 0 <= value(now, "dispatcher_canary_age_seconds", model="double") < 600
    assert value(now, "dispatcher_ready") == 1
    assert value(now, "dispatcher_triton_up") == 0, "there is none behind this one"
    memory = {key: v for key, v in now.items() if key[0] == "dispatcher_worker_resident_bytes"}
    assert len(memory) == 2
    for (_, labels), size in memory.items():
        status = Path(f"/proc/{dict(labels)['pid']}/status").read_text()
        rss = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024
        assert rss / 2 < size < rss * 2


def test_a_worker_that_is_killed_takes_only_its_requests_in_flight_along(seen: Endpoint) -> None:
    before = settled(seen)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(seen.ask, modelname="sleeps", payload={"seconds": [1.5]})
        wait_for(
            lambda: value(scraped(seen), "dispatcher_requests_in_flight") == 7, 5, "all six begin"
        )
        workers = descendants(seen.process.pid)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(workers), 5, "the workers' end")
    wait_for(lambda: seen.call("/ping").status == 200, 20, "new workers")
    kept = {k: v for k, v in before.items() if k[0] == "dispatcher_requests_total"}
    now = settled(seen)
    assert all(now[key] >= number for key, number in kept.items()), "what was counted stays"


def test_triton_s_own_metrics_stand_beside_them(endpoint: Endpoint) -> None:
    def answered(samples: Samples) -> float:
        # The parser gives a counter the ending that Triton leaves out.
        return value(samples, "nv_inference_request_success_total", model="bert_base")

    before = scraped(endpoint)
    text = {"text": "The world has [MASK] people."}
    for _ in range(3):
        assert endpoint.ask(modelname="bert_base", payload=text).status == 200
    counted = answered(before) + 3
    wait_for(
        lambda: answered(scraped(endpoint)) >= counted, 5, "Triton's count: it follows the answer"
    )
    now = settled(endpoint)
    assert answered(now) >= counted
    assert value(now, "dispatcher_triton_up") == 1
    assert value(now, "dispatcher_ready") == 1
    assert value(now, "dispatcher_canary_ok") == 3
    ours = difference(now, before)
    assert value(ours, "dispatcher_requests_total", model="bert_base", status="200") == 3
    assert value(ours, "dispatcher_request_seconds_sum", model="bert_base", status="200") > 0


def test_restarts_and_a_container_that_is_not_ready_are_told() -> None:
    registry, server = Registry(), FakeTriton()
    readiness = Readiness(lambda: triton("waiting", 3, "SIGKILL"), Status)
    environment = Environment(server, PROJECT / "model_repository")
    settings = read_settings({"TRITON_METRICS_PORT": "1"})  # nobody is there
    app = create_app(settings, registry, environment, renamed_config, readiness)
    page = app.test_client().get("/metrics")
    assert page.status_code == 200
    assert 'dispatcher_restarts_total{program="triton"} 2.0' in page.text
    assert "dispatcher_ready 0.0" in page.text
    assert "dispatcher_triton_up 0.0" in page.text


def test_a_model_that_is_loaded_at_run_time_is_counted_by_its_name(tmp_path: Path) -> None:
    for name in ("repository", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "model.onnx").touch()
    registry, server = Registry(), FakeTriton()
    readiness = Readiness(SupervisorStatus, Status)
    environment = Environment(server, tmp_path / "repository")
    settings = read_settings({"TRITON_METRICS_PORT": "1"})  # nobody is there
    client = create_app(settings, registry, environment, renamed_config, readiness).test_client()
    since = {"X-Request-Start": str(time.time())}
    body = {"model_name": "new", "url": str(tmp_path / "elsewhere")}
    for method, path, status in (
        ("DELETE", "/models/new", 404),
        ("POST", "/models", 200),
        ("POST", "/models", 409),
        ("POST", "/load_model/new", 200),
        ("DELETE", "/models/new", 200),
    ):
        answer = client.open(path, method=method, json=body, headers=since, buffered=True)
        assert answer.status_code == status
        answer.close()
    counted = [
        (sample.labels["method"], sample.labels["model"], sample.labels["status"])
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "dispatcher_requests_total"
    ]
    assert sorted(counted) == [
        ("DELETE", "new", "200"),
        ("DELETE", "other", "404"),
        ("POST", "new", "200"),
        ("POST", "new", "200"),
        ("POST", "new", "409"),
    ]


def test_a_worker_has_the_room_for_its_counts_before_it_counts(seen: Endpoint) -> None:
    """A disk that is full later ends no worker: the files are mapped into its memory."""
    folder = seen.log.parent / "metrics"
    for pid in descendants(seen.process.pid):
        for kind in ("counter", "histogram", "gauge_livesum"):
            status = (folder / f"{kind}_{pid}.db").stat()
            assert status.st_blocks * 512 >= status.st_size
    assert len(list(folder.glob("gauge_*"))) == 2, "those of dead workers are gone"


COUNTING = """
import os, sys
from prometheus_client import Counter, Histogram, values
Counter("asked", "", ["model"]).labels(sys.argv[1]).inc(float(sys.argv[2]))
Histogram("took_seconds", "", buckets=(1.0, 5.0)).observe(float(sys.argv[2]))
print(os.getpid())
"""


def test_what_dead_workers_have_counted_is_in_one_file_of_each_kind(tmp_path: Path) -> None:
    def count(model: str, number: int) -> None:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        command = [sys.executable, "-c", COUNTING, model, str(number)]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    def lines() -> list[str]:
        return sorted(Metrics(folder=tmp_path).page().decode().splitlines())

    for model, number in (("a", 2), ("b", 3), ("a", 4)):
        count(model, number)
    expected = lines()
    assert 'asked_total{model="a"} 6.0' in expected
    assert 'took_seconds_bucket{le="+Inf"} 3.0' in expected
    assert len(list(tmp_path.glob("*.db"))) == 6
    own = tmp_path / f"counter_{os.getpid()}.db"
    MmapedDict(str(own)).close()  # type: ignore[no-untyped-call]
    for _ in range(2):
        gather_dead(tmp_path)
        assert lines() == expected
        names = {path.name for path in tmp_path.glob("*.db")}
        assert names == {own.name, "counter_dead.db", "histogram_dead.db"}
    size = (tmp_path / "counter_dead.db").stat().st_size
    count("a", 10)
    gather_dead(tmp_path)
    assert 'asked_total{model="a"} 16.0' in lines()
    assert (tmp_path / "counter_dead.db").stat().st_size == size, "it does not grow by itself"


def test_a_page_is_read_again_where_files_were_gathered_meanwhile(tmp_path: Path) -> None:
    tries: list[int] = []

    def read() -> bytes:
        tries.append(1)
        if len(tries) == 1:
            raise FileNotFoundError
        if len(tries) == 2:
            (tmp_path / "counter_dead.db").touch()
        return b"%d" % len(tries)

    assert read_settled(tmp_path, read) == b"3"
    tries.clear()

    def never() -> bytes:
        tries.append(1)
        raise FileNotFoundError

    with pytest.raises(FileNotFoundError):
        read_settled(tmp_path, never)
    assert len(tries) == 5


def test_without_room_a_worker_counts_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setenv(gunicorn_hooks.FOLDER, str(tmp_path / "counts"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    gunicorn_hooks.on_starting(SimpleNamespace(murder_workers=None))
    worker = SimpleNamespace(pid=1, booted=True)
    gunicorn_hooks.post_fork(SimpleNamespace(log=logging.getLogger()), worker)
    assert gunicorn_hooks.FOLDER not in os.environ


# The log


def lines_of(endpoint: Endpoint, request_id: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the lines for a request, once there are so many."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        text = endpoint.log.read_text().splitlines()
        found[:] = [json.loads(line) for line in text if f'"request_id": "{request_id}"' in line
                    or f'"request_id":"{request_id}"' in line]  # fmt: skip
        return len(found) >= count

    wait_for(there, 5, f"{count} lines for {request_id}")
    time.sleep(0.3)
    assert there()
    assert len(found) == count
    return found


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
    assert set(times) == {"queue_s", "decode_s", "inference_s", "postprocess_s", "total_s"}
    assert 0 < sum(times.values()) - times["total_s"] <= times["total_s"] < 5
    assert line == {
        "program": "dispatcher",
        "request_id": "log-1",
        "method": "POST",
        "route": "/invocations",
        "model": "double",
        "version": "1",
        "status": 200,
        "bytes_in": len(body),
        "bytes_out": len('{"modelname":"double","result":[2.0],"modelversion":"1"}'),
    }


def test_a_streamed_answer_is_told_when_its_last_byte_was_sent(seen: Endpoint) -> None:
    one = {"modelname": "double", "payload": {"numbers": [1]}}
    lines = "\n".join(json.dumps(x) for x in [one] * 300 + [one | {"modelname": "fails"}])
    answer = seen.call(
        "/invocations",
        lines,
        headers={"Content-Type": "application/jsonlines", "X-Request-Id": "log-lines"},
    )
    (line,) = lines_of(seen, "log-lines")
    assert line["bytes_out"] == len(answer.body)
    assert (line["items"], line["failed"], line["model"]) == (301, 1, "double,fails")


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


def test_a_list_in_lines_ends_with_what_json_cannot_hold(seen: Endpoint) -> None:
    before = settled(seen)
    payload = [{"numbers": [n]} for n in (*[1] * 40, 2, 1)]
    answer = seen.call(
        "/infer/odd",
        json.dumps({"payload": payload}),
        headers={"Accept": "application/jsonlines", "X-Request-Id": "odd-list"},
    )
    *results, last = map(json.loads, answer.body.decode().splitlines())
    assert results == [1] * 40
    assert (last["status"], last["error"]["modelname"]) == (500, "odd")
    assert last["error"]["request_id"] == "odd-list"
    (line,) = lines_of(seen, "odd-list")
    assert (line["items"], line["failed"], line["model"]) == (41, 1, "odd")
    now = difference(settled(seen), before)
    assert value(now, "dispatcher_items_total", model="odd", status="200") == 40
    assert value(now, "dispatcher_items_total", model="odd", status="500") == 1


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
    wait_for(lambda: f"left-{form}" in seen.log.read_text(), 10, "its line")
    for line in lines_of(seen, f"left-{form}"):
        assert (line["status"], line["code"]) == (499, "caller_gone")
        assert 0 < line["items"] < 200
        assert line["failed"] == 0


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("application/json", ""),
        ("image/png", ""),
        ("text/plain", ""),
        ("application/jsonlines", ""),
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
    wait_for(lambda: name in seen.log.read_text(), 10, "its line")
    (line,) = lines_of(seen, name)
    assert (line["status"], line["code"]) == (499, "caller_gone")


def test_several_models_are_named_once_each(seen: Endpoint) -> None:
    answer = seen.ask(modelname=["double", "odd"], payload={"numbers": [2]})
    assert set(answer.json["results"]) == {"double", "odd"}
    assert answer.json["results"]["double"] == {"status": 200, "result": [4.0]}
    odd = answer.json["results"]["odd"]
    assert (set(odd), odd["status"]) == ({"status", "error"}, 500)
    assert odd["error"]["modelname"] == "odd"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        (
            "/invocations",
            '{"modelname": "no-such", "payload": {}}',
            404,
            "unknown_model",
            "no-such",
        ),
        ("/infer/fails", '{"payload": {"numbers": [1]}}', 502, "model_failed", "it fell over"),
        ("/nowhere?key=1", None, 404, "not_found", "not found"),
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


def test_a_call_that_hangs_is_told_when_its_caller_was_answered(tmp_path: Path) -> None:
    with front(tmp_path, MODEL_SERVER_ACCESS_LOG="errors") as endpoint:
        body = json.dumps({"payload": {"seconds": [4]}})
        path = "/infer/sleeps?timeout_ms=500"
        assert endpoint.call(path, body, headers={"X-Request-Id": "hangs"}).status == 504
        (line,) = lines_of(endpoint, "hangs")
        assert line["total_s"] < 3.5
        assert (line["status"], line["code"]) == (504, "deadline_exceeded")
        assert line["model"] == "sleeps"
        now = scraped(endpoint)
        assert value(now, "dispatcher_request_seconds_count", model="sleeps", status="504") == 1
        assert value(now, "dispatcher_requests_in_flight") == 1
        assert '"/metrics"' not in endpoint.log.read_text(), "it was answered well"
        time.sleep(3)  # until the thread comes back
        assert len(lines_of(endpoint, "hangs")) == 1
        assert value(scraped(endpoint), "dispatcher_requests_total", model="sleeps") == 1


def test_a_traceback_is_one_line_of_json_where_all_is_json(tmp_path: Path) -> None:
    with front(tmp_path, LOG_FORMAT="json") as endpoint:
        body = json.dumps({"payload": {"numbers": [1]}})
        headers = {"X-Request-Id": "breaks"}
        assert endpoint.call("/infer/breaks", body, headers=headers).status == 500
        wait_for(lambda: "ZeroDivisionError" in endpoint.log.read_text(), 5, "the traceback")
        lines = endpoint.log.read_text().splitlines()
        (found,) = [json.loads(line) for line in lines if "ZeroDivisionError" in line]
        assert (found["program"], found["level"]) == ("dispatcher", "error")
        assert "breaks" in found["message"]
        assert "Traceback" in found["message"]
        assert "raise ZeroDivisionError" in found["message"]


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


def test_a_line_that_cannot_be_written_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushes = iter([ValueError("no line"), None])
    second = threading.Event()

    def flush() -> None:
        if error := next(flushes, None):
            raise error
        second.set()

    written = AccessLog(-1)
    monkeypatch.setattr(written, "flush", flush)
    threading.Thread(target=written._go_on, daemon=True).start()
    written._some.set()
    wait_for(lambda: not written._some.is_set(), 5, "the first lines")
    wait_for(lambda: written._some.set() or second.is_set(), 5, "the next lines")
