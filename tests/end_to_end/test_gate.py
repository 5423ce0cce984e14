"""What callers with bad intentions and pages of other sites get, on the real NGINX and gunicorn."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError

from dispatcher.codecs.error_responses import hosting_service_error
from dispatcher.errors import ROUTING
from tests.conftest import PATIENCE_S, Answer, Endpoint, wait_for
from tests.support.front import front, sagemaker_runtime

DOUBLE = json.dumps({"modelname": "double", "payload": {"numbers": [1]}}).encode()
TWO = {"modelname": "double", "result": [2.0]}
SHOP = "https://shop.example"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("front")) as endpoint:
        yield endpoint


@dataclass(frozen=True)
class Came:
    """One answer of several on a connection."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for given, value in self.headers if given.lower() == name.lower()]


LAST = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: last\r\n\r\n"


def exchange(endpoint: Endpoint, sent: bytes) -> list[Came]:
    """Send bytes as they are; return every answer until NGINX closes.

    Where it does not after the first one, it is asked to: an answer to what it has taken for a
    second request would come before that.
    """
    answers: list[Came] = []
    with (
        socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S) as connection,
        connection.makefile("rb") as stream,
    ):
        with suppress(OSError):  # NGINX need not read all of it
            connection.sendall(sent)
        with suppress(ConnectionResetError):
            while first := stream.readline().decode():
                status = re.fullmatch(r"HTTP/1\.[01] (\d{3}) .*\r\n", first)
                assert status, f"this is no status line: {first!r}"
                lines = iter(lambda: stream.readline().decode("latin-1").strip(), "")
                headers = [
                    (name, value.strip()) for name, _, value in (x.partition(":") for x in lines)
                ]
                answer = Came(int(status[1]), headers, b"")
                length = int((answer.all("Content-Length") or ["0"])[0])
                answers.append(Came(answer.status, headers, stream.read(length)))
                if len(answers) == 1 and "close" not in answer.all("Connection"):
                    connection.sendall(LAST)
    return [one for one in answers if one.all("X-Request-Id") != ["last"]]


def post(headers: bytes, body: bytes = DOUBLE) -> bytes:
    return b"POST /invocations HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body


def chunked(size: bytes) -> bytes:
    """Return a request whose first chunk has this for its size."""
    return post(b"Transfer-Encoding: chunked\r\n", size + b"\r\n" + DOUBLE + b"\r\n0\r\n\r\n")


LENGTH = b"Content-Length: %d\r\n" % len(DOUBLE)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CLOSE = b"Connection: close\r\n"
SECOND = b"GET /models HTTP/1.1\r\nHost: x\r\n\r\n"  # must never be seen as a request
ATTRIBUTES = b"X-Amzn-SageMaker-Custom-Attributes: "

REFUSED = {
    "length and chunks": post(LENGTH + CHUNKED, b"0\r\n\r\n" + SECOND),
    "chunks and length": post(CHUNKED + b"Content-Length: 4\r\n", b"0\r\n\r\n" + SECOND),
    "two lengths": post(LENGTH + b"Content-Length: 3\r\n", DOUBLE + SECOND),
    "one length twice": post(LENGTH + LENGTH),
    "a list of lengths": post(b"Content-Length: %d, %d\r\n" % (len(DOUBLE), len(DOUBLE))),
    "a length with a sign": post(b"Content-Length: +%d\r\n" % len(DOUBLE)),
    "a negative length": post(b"Content-Length: -1\r\n"),
    "a hexadecimal length": post(b"Content-Length: 0x10\r\n"),
    "no chunk size": chunked(b"zz"),
    "a negative chunk": chunked(b"-1"),
    "a chunk over 64 bits": chunked(b"f" * 17),
    "a chunk with 0x": chunked(b"0x10"),
    "an unknown packing": post(b"Transfer-Encoding: xchunked\r\n" + LENGTH),
    "chunks not last": post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
    "two packings": post(CHUNKED + b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "a space before the colon": post(b"Transfer-Encoding : chunked\r\n" + LENGTH, SECOND),
    "a tab in the packing": post(b"Transfer-Encoding: \x0bchunked\r\n" + LENGTH),
    "a folded packing": post(b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH),
    "a folded header": post(LENGTH + b"X-A: b\r\n c: d\r\n"),
    "folded attributes": post(LENGTH + ATTRIBUTES + b"a=b\r\n\tSet-Cookie: x\r\n"),
    "CR in the attributes": post(LENGTH + ATTRIBUTES + b"a=b\rSet-Cookie: x=y\r\n"),
    "NUL in the attributes": post(LENGTH + ATTRIBUTES + b"a=b\0c\r\n"),
    "other letters in the attributes": post(
        LENGTH + ATTRIBUTES + "a=嘊嘍".encode() + b"\r\n" + CLOSE
    ),
    "CR in the id": post(LENGTH + b"X-Request-Id: a\rSet-Cookie: x=y\r\n"),
    "a space in a name": post(LENGTH + b"X A: b\r\n"),
    "two hosts": post(LENGTH + b"Host: y\r\n"),
    "no host": b"POST /invocations HTTP/1.1\r\n" + LENGTH + b"\r\n" + DOUBLE,
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
}

HARMLESS = {
    "LF in the attributes": post(LENGTH + ATTRIBUTES + b"a=b\nSet-Cookie: x=y\r\n" + CLOSE),
    "CRLF, encoded": post(LENGTH + ATTRIBUTES + b"a=%0d%0aSet-Cookie: x=y\r\n" + CLOSE),
    "markup in the id": post(LENGTH + b'X-Request-Id: a"}<script>\r\n' + CLOSE),
    "underscores": post(LENGTH + b"X_Request_Id: b\r\nTransfer_Encoding: chunked\r\n" + CLOSE),
    "named hop by hop": post(LENGTH + b"Connection: close, X-Request-Id, Content-Length\r\n"),
    "another protocol": post(LENGTH + b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n"),
    "an extension of a chunk": post(
        CHUNKED + CLOSE, b"%x;a=b\r\n" % len(DOUBLE) + DOUBLE + b"\r\n0\r\n\r\n"
    ),
    "a queue time of its own": post(LENGTH + b"X-Request-Start: 0\r\n" + CLOSE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_servers_could_read_differently_is_refused(gate: Endpoint, name: str) -> None:
    (answer,) = exchange(gate, REFUSED[name])
    assert answer.status in (400, 501)
    assert json.loads(answer.body)["error"]["code"] in (
        "bad_request",
        "bad_header",
        "not_implemented",
    )
    assert not answer.all("Set-Cookie")
    assert gate.call("/invocations", DOUBLE).json == TWO, "the next caller gets their own answer"


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_let_through_does_no_harm(gate: Endpoint, name: str) -> None:
    (answer,) = exchange(gate, HARMLESS[name])
    assert (answer.status, json.loads(answer.body)) == (200, TWO)
    assert not answer.all("Set-Cookie")
    (request_id,) = answer.all("X-Request-Id")
    assert re.fullmatch(r"[0-9a-f]{32}", request_id)
    (timing,) = answer.all("Server-Timing")
    assert float(timing.split(";dur=")[1].split(",")[0]) < 60_000
    assert gate.call("/invocations", DOUBLE).json == TWO


@pytest.mark.parametrize(
    "path", ["/.refused", "/infer//double", "/models//double/invoke", "/infer/"]
)
def test_a_path_that_is_none_is_404_in_json(gate: Endpoint, path: str) -> None:
    sent = post(LENGTH + CLOSE + b"Content-Type: application/json\r\n")
    (answer,) = exchange(gate, sent.replace(b"/invocations", path.encode(), 1))
    assert (answer.status, answer.all("Location")) == (404, [])
    assert answer.all("Content-Type") == ["application/json"]
    error = json.loads(answer.body)["error"]
    assert (error["code"], error["hint"]) == ROUTING[404]
    assert_safe(answer)


@pytest.mark.parametrize(
    ("sizes", "status"), [([8000] * 3, 200), ([8200], 400), ([8000] * 5, 400)], ids=str
)
def test_headers_may_be_as_long_as_is_documented(
    gate: Endpoint, sizes: list[int], status: int
) -> None:
    (answer,) = exchange(gate, get(b"/ping", *(b"X: " + b"x" * size for size in sizes)))
    assert answer.status == status
    if status == 400:
        hint = json.loads(answer.body)["error"]["hint"]
        assert "a single one may have 8 kB, all 32 kB" in hint
        assert hint == ROUTING[400][1]


def get(path: bytes, *headers: bytes) -> bytes:
    lines = b"".join(one + b"\r\n" for one in (b"Host: x", b"Connection: close", *headers))
    return b"GET " + path + b" HTTP/1.1\r\n" + lines + b"\r\n"


ANSWERS = {
    "200": (200, post(LENGTH + CLOSE)),
    "/ping": (200, get(b"/ping")),
    "/openapi.json": (200, get(b"/openapi.json")),
    "400": (400, post(CLOSE, b"")),
    "404": (404, get(b"/nowhere")),
    "405": (405, get(b"/invocations")),
    "NGINX's 400": (400, REFUSED["two hosts"]),
    "NGINX's 405": (405, b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "NGINX's 413": (413, post(b"Content-Length: 99999999\r\n", b"")),
    "NGINX's 414": (414, get(b"/" + b"x" * 40_000)),
    "NGINX's 501": (501, REFUSED["an unknown packing"]),
    "a model error": (
        424,
        post(b"Content-Length: 1\r\n" + CLOSE, b"{").replace(b"/", b"/endpoints/x/", 1),
    ),
    "NGINX's model error": (
        424,
        post(b"Content-Length: 99999999\r\n", b"").replace(b"/", b"/endpoints/x/", 1),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_the_headers_once_and_no_version(gate: Endpoint, name: str) -> None:
    status, sent = ANSWERS[name]
    (answer,) = exchange(gate, sent)
    assert answer.status == status
    assert_safe(answer)


@pytest.mark.parametrize(
    ("headers", "body", "length"),
    [
        (b"Content-Length: 27262976\r\n", b"", "(27262976 bytes)"),
        (CHUNKED, 26 * (b"100000\r\n" + b" " * 2**20 + b"\r\n"), "(of a length it does not say)"),
    ],
    ids=["length", "chunks"],
)
def test_a_body_that_is_too_large_is_told_how_large_it_may_be(
    gate: Endpoint, headers: bytes, body: bytes, length: str
) -> None:
    (answer,) = exchange(gate, post(headers, body))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (413, "too_large")
    assert set(error) == {"code", "message", "hint", "request_id"}
    assert f"too large {length}; at most 25 MiB" in error["message"]


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/rerank", b"/v2/rerank"])
def test_nginx_refuses_openai_s_clients_in_their_form(gate: Endpoint, path: bytes) -> None:
    asked = post(b"Content-Length: 99999999\r\n", b"").replace(b"/invocations", path, 1)
    (answer,) = exchange(gate, asked)
    error = json.loads(answer.body)["error"]
    assert "too large" in error.pop("message")
    assert error == {"type": "invalid_request_error", "code": "too_large", "param": None}


@pytest.mark.parametrize(
    "line", ["BREW /ping HTTP/1.1", "GET /ping HTTP/3.0", "GET /ping?" + "x" * 5000 + " HTTP/1.1",
             "GET /ping HTTP/1.1\r\n" + "\r\n".join(f"X-{n}: y" for n in range(150)), "GARBAGE"],
    ids=lambda line: line[:14],
)  # fmt: skip
def test_no_refusal_is_html(gate: Endpoint, line: str) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"{line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"<html" not in answer.lower()
    if body:
        assert json.loads(body)["error"]["code"]
        assert 400 <= int(head.split()[1]) < 500


def assert_safe(answer: Came) -> None:
    assert answer.all("X-Content-Type-Options") == ["nosniff"]
    assert answer.all("X-Frame-Options") == ["DENY"]
    assert answer.all("Referrer-Policy") == ["no-referrer"]
    assert answer.all("Cache-Control") == ["no-store"]
    (policy,) = answer.all("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.all("Server") == ["nginx"]
    assert len(answer.all("X-Request-Id")) == 1
    assert not re.search("gunicorn|werkzeug|python|nginx/", str(answer.headers), re.IGNORECASE)


@pytest.fixture(scope="module")
def deserted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """NGINX without a web worker behind it, for pages of another site too."""
    with front(tmp_path_factory.mktemp("deserted"), CORS_ORIGINS=SHOP) as endpoint:
        endpoint.process.terminate()
        endpoint.process.wait(PATIENCE_S)
        yield endpoint


def test_without_a_web_worker_the_answer_is_the_same_in_form(deserted: Endpoint) -> None:
    (answer,) = exchange(deserted, post(LENGTH + CLOSE + b"X-Request-Id: mine\r\n"))
    assert answer.status == 503
    assert answer.all("Retry-After") == ["5"]
    assert answer.all("X-Request-Id") == ["mine"]
    assert json.loads(answer.body)["error"]["request_id"] == "mine"
    assert_safe(answer)


def test_without_a_web_worker_a_page_can_still_read_why(deserted: Endpoint) -> None:
    answer = deserted.call("/invocations", DOUBLE, headers={"Origin": SHOP})
    assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
    assert answer.headers["Access-Control-Allow-Origin"] == SHOP
    assert answer.headers["Retry-After"] == "5"
    asks = {"Origin": SHOP, "Access-Control-Request-Method": "POST"}
    assert deserted.call("/invocations", None, "OPTIONS", asks).status == 204


NUMBERS = b'{"modelname": "%b", "payload": {"%b": [4]}}'
MODEL_ERRORS = {
    "no JSON": (b"{", 400, "bad_body", ""),
    "an unknown model": (NUMBERS % (b"nosuch", b"numbers"), 404, "unknown_model", ""),
    "a model that fails": (NUMBERS % (b"fails", b"numbers"), 502, "model_failed", ""),
    "a bug": (NUMBERS % (b"breaks", b"numbers"), 500, "client_failed", ""),
    "late": (NUMBERS % (b"sleeps", b"seconds"), 504, "deadline_exceeded", "timeout_ms=100"),
    "NGINX's 413": (b" " * (26 * 2**20), 413, "too_large", ""),
}


@pytest.mark.parametrize("name", MODEL_ERRORS)
def test_boto3_raises_its_model_error(gate: Endpoint, name: str) -> None:
    """As SageMaker's API reference describes it (InvokeEndpoint, ModelError)."""
    body, status, code, attributes = MODEL_ERRORS[name]
    runtime = sagemaker_runtime(gate)
    with pytest.raises(runtime.exceptions.ModelError) as caught:
        runtime.invoke_endpoint(
            EndpointName="mine", Body=body, InferenceId="an-id", CustomAttributes=attributes
        )
    assert_model_error(caught.value, status, code)


def assert_model_error(error: ClientError, status: int, code: str) -> None:
    response: Any = error.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert response["Error"]["Code"] == "ModelError"
    assert response["OriginalStatusCode"] == status
    assert len(response["OriginalMessage"]) <= 2048
    original = json.loads(response["OriginalMessage"])["error"]
    assert original["code"] == code
    assert original["message"]
    assert original["request_id"] == "an-id"
    assert response["ResponseMetadata"]["HTTPHeaders"]["x-request-id"] == "an-id"
    assert response["LogStreamArn"] == ""
    side = "client" if status < 500 else "server"
    begin = f'Received {side} error ({status}) from primary with message "{{'
    assert response["Error"]["Message"].startswith(begin)
    assert original["message"] in str(error)


def test_the_original_message_is_as_long_as_the_service_keeps_it() -> None:
    """2048 characters, each of which may be several bytes, and escaped."""
    answer = json.loads(hosting_service_error(503, '"é' * 2000))
    assert answer["OriginalMessage"] == '"é' * 1024
    assert answer["OriginalStatusCode"] == 503


def test_boto3_raises_its_model_error_without_a_web_worker(deserted: Endpoint) -> None:
    runtime = sagemaker_runtime(deserted)
    with pytest.raises(runtime.exceptions.ModelError) as caught:
        runtime.invoke_endpoint(EndpointName="mine", Body=DOUBLE, InferenceId="an-id")
    wait_for(lambda: '"request_id": "an-id"' in deserted.log.read_text(), "its line")
    log = deserted.log.read_text()
    assert_model_error(caught.value, 503, "unavailable")
    (line,) = [json.loads(one) for one in log.splitlines() if '"request_id": "an-id"' in one]
    assert (line["status"], line["code"]) == (503, "unavailable")
    assert line["path"] == "/endpoints/mine/invocations"


def test_boto3_is_refused_what_the_service_alone_answers(gate: Endpoint) -> None:
    runtime = sagemaker_runtime(gate)
    for ask, sent, path in (
        (runtime.invoke_endpoint_with_response_stream, {"Body": DOUBLE}, "response-stream"),
        (runtime.invoke_endpoint_async, {"InputLocation": "s3://bucket/key"}, "async-invocations"),
    ):
        with pytest.raises(ClientError, match=r"ask by invoke_endpoint \(POST") as caught:
            ask(EndpointName="mine", **sent)
        assert path in str(caught.value)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 424


def test_boto3_is_answered_and_errors_elsewhere_are_as_ever(gate: Endpoint) -> None:
    answer = sagemaker_runtime(gate).invoke_endpoint(EndpointName="a-b1", Body=DOUBLE)
    assert json.loads(answer["Body"].read()) == TWO
    for path, status in (
        ("/invocations", 400),
        ("/.service_refused?413", 404),  # of NGINX alone
        ("/endpoints", 404),
    ):
        (came,) = exchange(
            gate,
            post(CLOSE + b"Content-Length: 1\r\n", b"{").replace(b"/invocations", path.encode()),
        )
        assert came.status == status
        assert came.all("X-Amzn-ErrorType") == []
        assert set(json.loads(came.body)) == {"error"}
    (came,) = exchange(gate, get(b"/endpoints/mine/invocations"))
    assert came.status == 405
    assert sorted(came.all("Allow")[0].split(", ")) == ["OPTIONS", "POST"]
    assert set(json.loads(came.body)) == {"error"}


def test_no_page_of_another_site_may_read_anything(gate: Endpoint) -> None:
    asks = {"Origin": SHOP, "Access-Control-Request-Method": "POST"}
    for method in ("GET", "OPTIONS"):
        answer = gate.call("/ping", None, method, asks)
        assert answer.status == 200
        assert not re.search("access-control|vary", " ".join(answer.headers).lower())


# Which pages of other sites may read the answers.

LOCAL = "http://localhost:3000"
# More, and longer ones, than NGINX's tables have room for by default.
MANY = [f"https://{'a' * 60}.{'b' * 60}.{number}.example:8443" for number in range(300)]
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"inference shop {'0' * 64}\n")
    folder = tmp_path_factory.mktemp("listed")
    origins = ", ".join([SHOP, *MANY, LOCAL])
    settings = {"CORS_ORIGINS": origins, "API_KEYS_FILE": str(keys)}
    with front(folder, **settings, MODEL_SERVER_MAX_BODY_MB="1") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with front(tmp_path_factory.mktemp("opened"), CORS_ORIGINS="*") as endpoint:
        yield endpoint


def allowed(answer: Answer) -> dict[str, str]:
    return {
        name.lower().removeprefix("access-control-"): value
        for name, value in answer.headers.items()
        if name.lower().startswith("access-control-")
    }


@pytest.mark.parametrize("origin", [SHOP, LOCAL, MANY[-1]])
def test_a_page_of_a_listed_site_may_read_answers_and_errors(listed: Endpoint, origin: str) -> None:
    for path, body, status in (
        ("/ping", None, 200),
        ("/models", None, 401),
        ("/invocations", DOUBLE, 401),
        ("/invocations", "0" * (2**20 + 1), 413),  # NGINX's own
        ("/endpoints/mine/invocations", "0" * (2**20 + 1), 424),
    ):
        answer = listed.call(path, body, headers={"Origin": origin})
        assert answer.status == status
        found = allowed(answer)
        assert found.pop("allow-origin") == origin
        exposed = found.pop("expose-headers").lower().split(", ")
        assert {"server-timing", "x-request-id", "retry-after"} <= set(exposed)
        assert not found  # above all no credentials
        assert answer.headers["Vary"] == "Origin"
        assert answer.headers["X-Request-Id"]


@pytest.mark.parametrize(
    "origin",
    [
        *("https://other.example", "http://shop.example", "https://shop.example.other.example"),
        *("https://shop.example:444", "https://shopXexample", "https://a.shop.example", "null", ""),
    ],
)
def test_a_page_of_another_site_may_not(listed: Endpoint, origin: str) -> None:
    for method, headers in (("GET", {}), ("OPTIONS", ASKS)):
        answer = listed.call("/ping", None, method, {"Origin": origin, **headers})
        assert answer.status == 200
        assert allowed(answer) == {}
        assert answer.headers["Vary"] == "Origin"  # or a cache would give it to a listed site
    # Without a key nothing is said of other paths either.
    assert listed.call("/models", None, "OPTIONS", {"Origin": origin, **ASKS}).status == 401


@pytest.mark.parametrize("path", ["/invocations", "/models/x", "/endpoints/mine/invocations"])
def test_a_browser_that_asks_first_is_answered_without_a_key(listed: Endpoint, path: str) -> None:
    answer = listed.call(path, None, "OPTIONS", {"Origin": SHOP, **ASKS})
    assert (answer.status, answer.body) == (204, b"")
    found = allowed(answer)
    assert found["allow-origin"] == SHOP
    assert found["allow-headers"] == "x-api-key"
    assert {"POST", "DELETE"} <= set(found["allow-methods"].split(", "))
    assert 0 < int(found["max-age"]) <= 7200  # Chromium's longest
    assert "allow-credentials" not in found
    assert answer.headers["Vary"] == "Origin"


def test_such_questions_are_not_in_the_log(listed: Endpoint) -> None:
    listed.call("/asked-first", None, "OPTIONS", {"Origin": SHOP, **ASKS})
    listed.call("/asked-then", None, "GET", {"Origin": SHOP})
    wait_for(lambda: "/asked-then" in listed.log.read_text(), "the line of the request")
    assert "/asked-first" not in listed.log.read_text()


def test_other_options_are_as_ever(listed: Endpoint) -> None:
    answer = listed.call("/ping", None, "OPTIONS", {"Origin": SHOP})  # of a program, not a browser
    assert answer.status == 200
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "POST"}
    assert "allow-methods" not in allowed(answer)


def test_a_star_allows_every_site_and_sends_no_credentials(opened: Endpoint) -> None:
    for origin in (SHOP, "null"):
        answer = opened.call("/invocations", DOUBLE, headers={"Origin": origin})
        assert answer.json == {"modelname": "double", "result": [2.0]}
        assert allowed(answer)["allow-origin"] == "*"
        assert "allow-credentials" not in allowed(answer)
        assert "Vary" not in answer.headers  # it is the same for all
        first = opened.call("/invocations", None, "OPTIONS", {"Origin": origin, **ASKS})
        assert (first.status, allowed(first)["allow-origin"]) == (204, "*")
    # No page asks so.
    assert opened.call("/nowhere", None, "OPTIONS", ASKS).status == 404
