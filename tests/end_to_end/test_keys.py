"""API keys: who may enter, and how the file of keys is taken up."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.auth.api_keys import BadKeys, KeyFile, load_keys, read_keys
from dispatcher.auth.authorization import PUBLIC, list_scopes
from tests.conftest import PATIENCE_S, PROJECT, Answer, Endpoint, alive, descendants, wait_for
from tests.support.front import front, key_lines
from tests.support.telemetry import lines_of, scraped, value
from tests.test_docs import openapi_app

ASKING, MANAGING, OLD = "a-key-for-asking", "a-key-for-managing", "a-key-that-goes"
DOUBLE = json.dumps({"modelname": "double", "payload": {"numbers": [1]}})
FILE = f"# who may enter\n\n{key_lines('inference', shop=ASKING)}" + key_lines(
    "management", ops=MANAGING
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(FILE + key_lines("inference", shop=OLD))
    return path


@pytest.fixture(scope="module")
def closed(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    settings = {"API_KEYS_FILE": str(file), "MODEL_SERVER_WORKERS": "2"}
    with front(tmp_path_factory.mktemp("front"), **settings) as endpoint:
        yield endpoint


def call(endpoint: Endpoint, route: str, key: str | None, **headers: str) -> Answer:
    method, path = route.split()
    if key is not None:
        headers["x-api-key"] = key
    return endpoint.call(path, DOUBLE if method == "POST" else None, method, headers)


@pytest.mark.parametrize(
    ("route", "asking", "managing"),
    [
        ("POST /invocations", 200, 403),
        ("POST /infer/double", 200, 403),
        ("POST /models/double/invoke", 200, 403),
        ("POST /models", 403, 400),
        ("DELETE /models/x", 403, 404),
        ("POST /load_model/x", 403, 404),
        ("POST /reload", 403, 200),
        ("GET /models", 200, 200),
        ("GET /health", 200, 200),
        ("GET /metrics", 200, 200),
        ("GET /openapi.json", 200, 200),
        ("GET /nowhere", 404, 404),
        ("PUT /models", 405, 405),
    ],
)
def test_a_key_is_good_for_what_it_is_for_and_without_one_nobody_enters(
    closed: Endpoint, route: str, asking: int, managing: int
) -> None:
    for key, status in ((ASKING, asking), (MANAGING, managing)):
        answer = call(closed, route, key)
        assert answer.status == status
        if status == 403:
            assert answer.json["error"]["code"] == "forbidden"
    for unknown in (None, "", "x", ASKING[:-1], f"{ASKING} {ASKING}", "0" * 64):
        answer = call(closed, route, unknown)
        assert answer.status == 401
        assert answer.json["error"]["code"] == "unauthorized"
        assert answer.headers["WWW-Authenticate"] == "ApiKey"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {ASKING}", 200),
        (f"bearer  {ASKING}", 200),
        (f"Bearer {MANAGING}", 403),
        ("Bearer x", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        (ASKING, 401),
        (f"Basic {ASKING}", 401),
    ],
)
def test_a_key_may_come_as_prometheus_sends_it(
    closed: Endpoint, authorization: str, status: int
) -> None:
    route = "POST /invocations"
    assert call(closed, route, None, Authorization=authorization).status == status
    # What a proxy adds for itself does not matter where there is a key.
    assert call(closed, route, ASKING, Authorization=authorization).status == 200


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/invocations", None, 401),
        ("/invocations?a=%2f..", "x", 401),
        ("/nowhere", None, 401),
        ("/models", None, 401),
        ("/endpoints/mine/invocations", None, 424),
        ("/invocations", ASKING, 400),
    ],
)
@pytest.mark.parametrize("length", [b"Content-Length: 900000", b"Transfer-Encoding: chunked"])
def test_a_key_is_looked_at_before_the_body(
    closed: Endpoint, path: str, key: str | None, status: int, length: bytes
) -> None:
    """Of those without one, 600 with 1 MB each ended NGINX in a small container."""
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"Host: here", b"Connection: close", length]
    head += [b"Content-Type: application/json"]
    head += [f"x-api-key: {key}".encode()] if key else []
    with socket.create_connection(("127.0.0.1", closed.port)) as caller:
        caller.settimeout(PATIENCE_S)
        caller.sendall(b"\r\n".join([*head, b"", b""]))
        if key == ASKING:  # the rest is awaited
            caller.sendall(b" " * 900_000 if b"900000" in length else b"1\r\n \r\n0\r\n\r\n")
        answer = http.client.HTTPResponse(caller)
        answer.begin()
        document = json.loads(answer.read())
    assert answer.status == status
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "ApiKey"
        assert document["error"]["code"] == "unauthorized"
    elif status == 424:
        assert document["OriginalStatusCode"] == 401
    else:
        assert document["error"]["code"] == "bad_body"


def test_what_is_open_takes_no_body(closed: Endpoint) -> None:
    """NGINX would keep 1 MiB of each, for callers without a key."""
    rules = openapi_app().url_map.iter_rules()
    paths = {one.rule for one in rules if one.endpoint in PUBLIC}
    assert len(paths) == len(PUBLIC)
    for path in paths:
        for body in (b"x" * 10_000, iter([b"x" * 5000] * 2)):  # the second in chunks
            answer = closed.call(path.replace("<", "").replace(">", ""), body, "POST")  # type: ignore[arg-type]
            assert answer.status == 413, path
            assert re.search("the body is too large .*; at most 8 kB are allowed", str(answer.json))
            assert "send no body" in str(answer.json)


@pytest.mark.parametrize("path", ["/.key", "/.key?a", "/.refused", "/.service_refused"])
def test_what_nginx_asks_itself_is_no_path(closed: Endpoint, path: str) -> None:
    for method, body in (("GET", None), ("POST", "x" * 20_000)):
        answer = closed.call(path, body, method)
        assert answer.status == 404
        assert answer.json["error"]["code"] == "not_found"


def test_a_large_body_is_answered_as_a_small_one(closed: Endpoint) -> None:
    padded = DOUBLE + " " * 20_000
    for path, key, status in (
        ("/invocations", ASKING, 200),
        ("/invocations", MANAGING, 403),
        ("/models", ASKING, 403),
        ("/nowhere", ASKING, 404),
    ):
        headers = {"x-api-key": key} if key else {}
        answer = closed.call(path, padded, "POST", headers)
        assert answer.status == status, answer
        assert "X-Request-Id" in answer.headers
    mine = closed.call("/invocations", padded, "POST", {"x-api-key": ASKING, "X-Key-Alone": "yes"})
    assert mine.json["result"] == [2], "only NGINX can ask for the key alone"


def test_the_hosting_service_s_own_path_needs_a_key_too(closed: Endpoint) -> None:
    for call_of, key, status in (
        ("invocations", None, 401),
        ("invocations", MANAGING, 403),
        ("async-invocations", None, 401),
        ("async-invocations", ASKING, 400),
    ):
        answer = call(closed, f"POST /endpoints/mine/{call_of}", key)
        assert (answer.status, answer.json["OriginalStatusCode"]) == (424, status)
    assert call(closed, "POST /endpoints/mine/invocations", ASKING).status == 200


@pytest.mark.parametrize("key", [None, "x", MANAGING])
@pytest.mark.parametrize("route", ["GET /ping", "POST /ping", "GET /execution-parameters"])
def test_what_the_platform_asks_is_open(closed: Endpoint, route: str, key: str | None) -> None:
    assert call(closed, route, key).status == 200


def test_every_route_has_the_scope_that_the_documentation_gives_it() -> None:
    table = (PROJECT / "docs" / "routes.md").read_text()
    for rule in openapi_app().url_map.iter_rules():
        for method in sorted(rule.methods - {"HEAD", "OPTIONS"}):
            shown = re.sub(r"<(\w+)>", r"{\1}", f"`{method} {rule.rule}`")
            (row,) = [r for r in table.splitlines() if r.startswith("|") and shown in r]
            needed = list_scopes(rule.endpoint, method)
            assert (
                row.split("|")[1].strip()
                == {0: "none", 1: "".join(needed), 2: "either"}[len(needed)]
            )


def test_the_log_names_whose_key_it_was_and_never_the_key(closed: Endpoint) -> None:
    call(closed, "POST /invocations", ASKING, **{"X-Request-Id": "keyed"})
    assert lines_of(closed, "keyed")[0]["key"] == "shop"
    assert (
        call(closed, "POST /invocations", "a-wrong-key", **{"X-Request-Id": "wrong"}).status == 401
    )
    assert lines_of(closed, "wrong")[0]["code"] == "unauthorized"
    log = closed.log.read_text()
    for key in (ASKING, MANAGING, OLD, "a-wrong-key"):
        assert key not in log
        assert hashlib.sha256(key.encode()).hexdigest() not in log


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def everywhere(closed: Endpoint, key: str, status: int) -> None:
    """Wait until both workers say so: five times in a row."""
    wait_for(
        lambda: {call(closed, "POST /invocations", key).status for _ in range(12)} == {status},
        f"{status} for {key}",
    )


def test_keys_change_without_a_restart_and_a_broken_file_keeps_them(
    closed: Endpoint, file: Path
) -> None:
    workers = descendants(closed.process.pid)
    new = "a-key-that-comes"
    assert call(closed, "POST /invocations", OLD).status == 200
    replace(file, FILE + key_lines("inference", shop=new))
    everywhere(closed, new, 200)
    everywhere(closed, OLD, 401)
    for broken in (FILE + "inference shop not-a-hash\n", "", "\xff"):
        replace(file, broken)
        wait_for(lambda: metric(closed) == {0.0}, "the metric that says so")
        assert call(closed, "POST /invocations", new).status == 200
        assert call(closed, "POST /invocations", OLD).status == 401
    assert "line 5 is no key" in closed.log.read_text()
    assert "not-a-hash" not in closed.log.read_text()
    # A worker that starts now has the keys that were good last.
    os.kill(min(descendants(closed.process.pid)), 9)
    wait_for(lambda: len(alive(descendants(closed.process.pid)) - workers) == 1, "a new worker")
    wait_for(lambda: call(closed, "GET /ping", None).status == 200, "/ping")
    everywhere(closed, new, 200)
    everywhere(closed, OLD, 401)
    file.unlink()
    replace(file, FILE)
    everywhere(closed, new, 401)
    everywhere(closed, ASKING, 200)
    wait_for(lambda: metric(closed) == {1.0}, "the metric that says so")


def metric(closed: Endpoint) -> set[float]:
    found = set()
    for _ in range(8):
        page = call(closed, "GET /metrics", MANAGING).body.decode()
        found.add(float(re.findall(r"^dispatcher_api_keys_ok (.*)$", page, re.MULTILINE)[0]))
    return found


# The file


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "admin x " + "0" * 64, "inference x", "inference x y " + "0" * 64,
     "inference x " + "0" * 63, "inference x " + "A" * 64, "inference a/b " + "0" * 64],
)  # fmt: skip
def test_a_bad_line_is_named_and_not_shown(text: str) -> None:
    with pytest.raises(BadKeys, match=r"line 1 is no key|has no key") as caught:
        read_keys(text)
    assert "0" * 10 not in str(caught.value)


def test_a_secret_of_kubernetes_is_looked_at_once_a_second_and_compared_wholly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet writes a folder beside the old one, and turns a link to it."""
    for folder, text in (("1", FILE), ("2", key_lines("inference", later="a-key-that-comes"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keys").write_text(text)
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "keys").symlink_to("..data/keys")
    time = [0.0]
    keys = KeyFile(tmp_path / "keys", clock=lambda: time[0])
    looks, stat = Counter[Path](), Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda one, **more: (looks.update([one]), stat(one, **more))[1]
    )
    compared: list[Any] = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: bool(compared.append(a)) or a == b)
    for _ in range(1000):
        assert [key.name for key in keys.matching(ASKING)] == ["shop"]
    assert looks.total() == 0
    assert len(compared) == 2000, "each key, also after one that is right"
    (tmp_path / "..new").symlink_to("2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    time[0] = 1.5
    assert [key.name for key in keys.matching("a-key-that-comes")] == ["later"]
    assert keys.matching(ASKING) == []
    assert looks.total() == 1


def test_a_key_that_the_program_makes_is_let_in(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tool", "new-key", "inference", "shop"],
        capture_output=True, text=True, check=True, cwd=PROJECT,
    )  # fmt: skip
    path = tmp_path / "keys"
    path.write_text(done.stdout)
    key = done.stderr.removeprefix("x-api-key: ").strip()
    assert re.fullmatch("[0-9a-f]{64}", key), "256 bits, and no `-` that begins an option"
    (found,) = KeyFile(path).matching(key)
    assert (found.scope, found.name) == ("inference", "shop")
    assert key not in done.stdout
    # What anybody else makes of it.
    hashed = subprocess.run(["sha256sum"], input=key, capture_output=True, text=True, check=True)
    assert hashed.stdout.split()[0] == done.stdout.split()[2]


# Without management


def test_management_can_be_switched_off(tmp_path: Path) -> None:
    with front(tmp_path, MANAGEMENT_ROUTES="false") as endpoint:
        for route in ("POST /models", "DELETE /models/double", "POST /load_model/double",
                      "POST /reload"):  # fmt: skip
            answer = call(endpoint, route, None)
            assert answer.status == 403
            assert answer.json["error"]["code"] == "management_off"
        for route in ("GET /models", "POST /invocations", "GET /health", "GET /ping"):
            assert call(endpoint, route, None).status == 200
        assert value(scraped(endpoint), "dispatcher_requests_total", status="403") == 4


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16"])
def test_a_file_as_editors_of_windows_save_it(tmp_path: Path, coding: str) -> None:
    (tmp_path / "keys").write_bytes(FILE.replace("\n", "\r\n").encode(coding))
    assert [(key.scope, key.name) for key in load_keys(tmp_path / "keys")] == [
        ("inference", "shop"),
        ("management", "ops"),
    ]
