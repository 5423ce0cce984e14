"""Many and slow callers, new web workers, and clients that hang or die, on NGINX and gunicorn."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S, Answer, Endpoint, descendants, wait_for
from tests.support.front import NGINX, front
from tests.support.sleepers import asked

SLEEPERS = "tests.support.sleepers:build()"
LINES = {"Content-Type": "application/jsonlines"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("load")
    with front(folder, SLEEPERS, MODEL_SERVER_QUEUE="24") as endpoint:
        yield endpoint


def ask_quick(endpoint: Endpoint) -> None:
    """Ask one after the other: who waited for what does not end would get no answer."""
    for _ in range(20):
        assert endpoint.call("/infer/quick", b'{"payload": {}}').status == 200


@pytest.mark.parametrize("kind", ["one", "lines"])
def test_a_burst_on_one_model_does_not_keep_another_one_waiting(
    endpoint: Endpoint, tmp_path: Path, kind: str
) -> None:
    """Which has turns while those of the burst all run, until there is a file.

    And each request of the burst is answered once: 200, or 429 with Retry-After.
    """
    over = tmp_path / "over"
    one = {"modelname": "sleeps", "payload": {"seconds": 0, "until": str(over)}}
    content, headers = json.dumps(one), dict[str, str]()
    if kind == "lines":
        content, headers = "\n".join([content] * 8), LINES
    with ThreadPoolExecutor(60) as pool:
        burst = [
            pool.submit(endpoint.call, "/infer/sleeps", content, headers=headers) for _ in range(60)
        ]
        try:
            wait_for(lambda: any(one.done() for one in burst), "more than can wait")
            ask_quick(endpoint)
            assert {one.result().status for one in burst if one.done()} == {429}
        finally:
            over.touch()
        answers = [one.result() for one in burst]
    assert {a.status for a in answers} == {200, 429}
    assert all("Retry-After" in a.headers for a in answers if a.status == 429)
    if kind == "lines":
        lines = [json.loads(one) for a in answers if a.status == 200 for one in a.body.splitlines()]
        assert {one["status"] for one in lines} == {200}


@contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_slow_and_idle_callers_cost_no_worker(endpoint: Endpoint) -> None:
    """1000 idle, 200 in their headers, 200 in their bodies, 50 that read nothing of 4 MB."""
    head = b"POST /infer/sleeps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    large = json.dumps({"payload": {"seconds": 0, "length": 4 * 2**20}}).encode()
    whole = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(large), large)
    starts = [b""] * 1000 + [head] * 200 + [head + b"Content-Length: 9\r\n\r\n{"] * 200
    connections = []
    with many_files():
        try:
            for start in starts + [whole] * 50:
                connection = socket.socket()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", endpoint.port))
                connection.sendall(start)
                connections.append(connection)
            ask_quick(endpoint)
        finally:
            for connection in connections:
                connection.close()


def test_however_many_stop_in_their_bodies_ping_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 callers; where NGINX may open 1024 files it has 512 connections, and takes 192 requests.

    Who is refused comes again.
    """
    monkeypatch.setattr("container.programs.nginx.open_files", lambda: 1024)
    head = b"POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    callers: list[socket.socket] = []
    with front(tmp_path, SLEEPERS) as endpoint, many_files():
        try:
            for number in range(600):
                caller = socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S)
                caller.sendall(head)
                if number < 192:
                    callers.append(caller)
                    continue
                answer = http.client.HTTPResponse(caller)
                answer.begin()
                assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
                assert json.loads(answer.read())["error"]["code"] == "too_many_requests"
                caller.close()
            for path, start in (("/health", b'{"ready":'), ("/metrics", b"# HELP dispatcher")):
                assert endpoint.call(path).body.startswith(start)
            # The probes of clusters. (There is no Triton here.)
            for path, status in (
                ("/ping", 503),
                ("/v2/health/live", 200),
                ("/v2/health/ready", 503),
            ):
                answer = endpoint.call(path)
                assert answer.status == status
                assert b"receiv" not in answer.body, "of the web worker, not of NGINX"
            assert endpoint.call("/infer/quick", b'{"payload": {}}').status == 429
        finally:
            for caller in callers:
                caller.close()
        wait_for(
            lambda: endpoint.call("/infer/quick", b'{"payload": {}}').status == 200,
            "a place for a request",
        )


def test_an_nginx_that_cannot_count_requests_serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "nginx"
    other.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -V ]; then echo "--without-http_limit_conn_module" >&2; exit; fi\n'
        f'! grep "^ *limit_conn" "$4" && exec {NGINX} "$@"\n'
    )
    other.chmod(0o700)
    monkeypatch.setattr("tests.support.front.NGINX", str(other))
    with front(tmp_path, SLEEPERS) as endpoint:
        assert endpoint.call("/infer/quick", b'{"payload": {}}').status == 200


@pytest.mark.slow
def test_headers_that_never_end_are_cut_off(endpoint: Endpoint) -> None:
    """After 20 s, however steadily they come, and without an answer; the log has a line."""
    with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        connection.settimeout(1)
        connection.sendall(b"GET /ping HTTP/1.1\r\nX-Long: ")
        answer = None
        for _ in range(PATIENCE_S):
            try:
                connection.sendall(b"x")
                answer = connection.recv(1000)
                break
            except TimeoutError:
                pass
            except OSError:
                answer = b""
                break
    assert answer == b""
    line = '"status": 408, "code": "request_timeout"'
    wait_for(lambda: line in endpoint.log.read_text(), "the line in the log")


def test_who_reads_a_stream_slowly_keeps_no_turn(endpoint: Endpoint) -> None:
    """16 of them, as many as one model may have at a time; each has 40 MB to read, and does not."""
    line = json.dumps({"modelname": "sleeps", "payload": {"seconds": 0, "length": 2**20}}) + "\n"
    content = line * 40
    head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: {LINES['Content-Type']}\r\n"
    readers = []
    try:
        for _ in range(16):
            reader = socket.create_connection(("127.0.0.1", endpoint.port))
            reader.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
            readers.append(reader)
        time.sleep(1)
        for _ in range(3):
            answer = endpoint.call("/infer/sleeps", b'{"payload": {"seconds": 0}}')
            assert answer.status == 200
            answer = endpoint.call("/infer/quick", b'{"payload": [{}, {}]}')
            assert answer.status == 200
    finally:
        for reader in readers:
            reader.close()


CALLERS = 8
RECENT = 60  # answers

REQUEST = {"modelname": "sleeps", "payload": {"seconds": [0.1]}}


def kill_a_worker(gunicorn: int, worker: int) -> None:
    assert gunicorn != worker
    os.kill(worker, signal.SIGKILL)


def replace_the_workers(gunicorn: int, _: int) -> None:
    os.kill(gunicorn, signal.SIGHUP)


def ask_until(stop: threading.Event, endpoint: Endpoint, seen: deque[int], lost: list[str]) -> None:
    while not stop.is_set():
        answer = endpoint.ask(**REQUEST)
        if answer.status == 200:
            seen.append(answer.json["result"])
        else:
            lost.append(answer.body.decode())


@pytest.mark.slow
@pytest.mark.parametrize("happens", [kill_a_worker, replace_the_workers])
def test_new_web_workers_get_requests_while_the_load_lasts(
    happens: Callable[[int, int], None], tmp_path: Path
) -> None:
    """NGINX keeps its connections to the workers, each of which leads to one of them.

    No request is lost but those of a worker that is killed.
    """
    seen, lost = deque[int](maxlen=RECENT), list[str]()
    stop = threading.Event()
    with front(tmp_path, MODEL_SERVER_WORKERS="2") as endpoint:
        gunicorn = endpoint.process.pid
        callers = [
            threading.Thread(target=ask_until, args=(stop, endpoint, seen, lost))
            for _ in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        try:
            before = wait_for_shares(seen, gunicorn, set())
            happens(gunicorn, seen[-1])
            wait_for_shares(seen, gunicorn, before)
        finally:
            stop.set()
            for caller in callers:
                caller.join()
    assert happens is kill_a_worker or lost == []


def wait_for_shares(seen: deque[int], gunicorn: int, before: set[int]) -> set[int]:
    """Wait until other workers than before have half of their fair share each; return them."""

    def shared() -> bool:
        workers, answers = descendants(gunicorn), Counter(tuple(seen))
        fair = RECENT / 2
        return workers != before and [answers[one] > fair / 2 for one in workers] == [True] * 2

    wait_for(shared, lambda: f"a share for each: {Counter(seen)}, {descendants(gunicorn)}")
    return descendants(gunicorn)


SHORT = {"MODEL_SERVER_TIMEOUT": "4", "SERVE_STOP_TIMEOUT": "3"}


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """In the end calls of `bad` hang in it."""
    with front(tmp_path_factory.mktemp("bad"), SLEEPERS, **SHORT) as endpoint:
        yield endpoint


def bad(endpoint: Endpoint, does: str, model: str = "bad") -> Answer:
    return endpoint.call(f"/infer/{model}", json.dumps({"payload": {"does": does}}))


def worker(endpoint: Endpoint) -> int:
    answer = endpoint.call("/infer/quick", '{"payload": {}}')
    assert answer.status == 200, answer.body
    return int(answer.json["result"])


@contextmanager
def steady(endpoint: Endpoint) -> Iterator[Counter[int]]:
    """Ask `quick` all the while, four callers at a time, and count the statuses."""
    statuses: Counter[int] = Counter()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            statuses[endpoint.call("/infer/quick", '{"payload": {}}').status] += 1

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        yield statuses
    finally:
        done.set()
        for caller in callers:
            caller.join()


@pytest.mark.parametrize("does", ["exit", "interrupt"])
def test_what_would_end_the_process_ends_one_request(hung: Endpoint, does: str) -> None:
    before = worker(hung)
    answer = bad(hung, does)
    assert (answer.status, answer.json["error"]["code"]) == (500, "client_failed")
    assert worker(hung) == before


def test_a_client_that_ends_the_process_is_survived(hung: Endpoint) -> None:
    """Requests in flight get 503, and a new worker is there within seconds."""
    before = worker(hung)
    with ThreadPoolExecutor(2) as pool:
        sleeping: Any = pool.submit(hung.call, "/infer/sleeps", '{"payload": {"seconds": 1}}')
        wait_for(lambda: asked(hung.log.parent), "the call that sleeps")
        answer = bad(hung, "die")
        for one in (answer, sleeping.result()):
            assert (one.status, one.json["error"]["code"]) == (503, "unavailable")
            assert "Retry-After" in one.headers

    def back() -> bool:
        answer = hung.call("/infer/quick", '{"payload": {}}')
        return answer.status == 200 and answer.json["result"] != before

    wait_for(back, "a fresh worker")


def test_clients_that_hang_are_answered_for_and_their_worker_is_replaced(hung: Endpoint) -> None:
    """504 at the deadline, 3.6 s of 4; `quick` is answered all the while.

    A worker that has lost half of its threads is replaced.
    """
    before = worker(hung)
    with steady(hung) as statuses, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: bad(hung, "hang"), range(4)))
        assert bad(hung, "nothing", "bad2").json["result"] == "nothing"
        assert worker(hung) == before
        wait_for(lambda: "time.sleep(1)" in hung.log.read_text(), "the log to say where it is")
        answers += pool.map(lambda _: bad(hung, "hang", "bad2"), range(8))
        assert {(a.status, a.json["error"]["code"]) for a in answers} == {
            (504, "deadline_exceeded")
        }
        wait_for(lambda: worker(hung) != before, "another worker")
        assert bad(hung, "nothing").json["result"] == "nothing"
    assert set(statuses) == {200}


@pytest.mark.slow
def test_a_client_that_holds_python_s_lock_is_survived(tmp_path: Path) -> None:
    """Nothing else runs in that worker, not even what gives signs of life: it is replaced."""
    with front(tmp_path, SLEEPERS) as endpoint:
        answer = bad(endpoint, "hold")
        assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
        wait_for(lambda: endpoint.call("/infer/quick", '{"payload": {}}').status == 200, "a worker")
