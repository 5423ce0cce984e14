"""What is passed on to Triton's HTTP port, and what becomes of its answers."""

from __future__ import annotations

import gzip
import json
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from werkzeug.test import EnvironBuilder

from clients.errors import ModelUnavailable
from clients.triton.server import TensorSpec
from dispatcher.execution.model_lookup import ModelLookup
from tests.conftest import wait_for
from tests.dispatcher.v2.conftest import TritonsPort
from tests.support.asking import ADD
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error

HEADER = b'{"inputs": []}'
LENGTH = {"Inference-Header-Content-Length": str(len(HEADER))}
SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
INFER = "/v2/models/add/infer"


def as_sent(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a body without the time that the dispatcher adds to its parameters."""
    length = int(headers["Inference-Header-Content-Length"])
    document = json.loads(body[:length])
    time_left = document.pop("parameters")
    assert set(time_left) == {"deadline_us", "timeout"}
    assert 0 < time_left["timeout"] <= 60e6
    assert 0 < time_left["deadline_us"] / 1e6 - time.time() <= 60
    return json.dumps(document).encode() + body[length:]


def test_body_and_length_arrive_as_they_were_sent(client: FlaskClient, triton: TritonsPort) -> None:
    triton.answer = lambda: (200, {"Inference-Header-Content-Length": "2"}, b"{}\0\1\2")
    for path in (INFER, "/v2/models/add/versions/3/infer"):
        answer = client.post(path, data=HEADER + b"\0\xff\0", headers=LENGTH)
        method, there, headers, body = triton.came[-1]
        assert (method, there) == ("POST", path)
        assert as_sent(headers, body) == HEADER + b"\0\xff\0"
        assert answer.status_code == 200
        assert answer.data == b"{}\0\1\2"
        assert answer.headers["Inference-Header-Content-Length"] == "2"
        assert answer.content_type == "application/octet-stream"


def test_no_other_header_of_the_caller_arrives(client: FlaskClient, triton: TritonsPort) -> None:
    client.post(INFER, data=HEADER, headers={"X-Api-Key": "secret", "Triton-Request-Id": "x"})
    ((_, _, headers, _),) = triton.came
    assert set(headers) == {"Host", "Accept-Encoding", "Content-Length"}


@pytest.mark.parametrize("path", ["/invocations", "/infer/add", "/models/add/invoke"])
def test_sagemaker_s_type_states_the_length_both_ways(
    client: FlaskClient, triton: TritonsPort, path: str
) -> None:
    triton.answer = lambda: (200, {"Inference-Header-Content-Length": "2"}, b"{}\0")
    content_type = f"{SAGEMAKER};json-header-size={len(HEADER)}"
    answer = client.post(path, data=HEADER + b"\0", content_type=content_type)
    ((_, there, headers, body),) = triton.came
    assert there == INFER
    assert as_sent(headers, body) == HEADER + b"\0"
    assert (answer.status_code, answer.data) == (200, b"{}\0")
    assert answer.content_type == f"{SAGEMAKER};json-header-size=2"
    triton.answer = lambda: (200, {}, b"{}")
    answer = client.post(path, data=HEADER, content_type=SAGEMAKER)
    assert answer.content_type == "application/json"


@pytest.mark.parametrize("size", ["x", "-1", "15", '"14', "99999999999999999999"])
def test_a_wrong_json_header_size_is_refused_in_the_usual_form(
    client: FlaskClient, triton: TritonsPort, size: str
) -> None:
    content_type = f"{SAGEMAKER};json-header-size={size}"
    answer = client.post("/invocations", data=HEADER, content_type=content_type)
    assert_error(answer, 400, "bad_header", "json-header-size in the Content-Type is ")
    assert not triton.came


@pytest.mark.parametrize(
    ("came", "body", "status", "text"),
    [
        (400, b'{"error": "bad tensor"}', 400, "bad tensor"),
        (404, b'{"error": "no such thing"}', 404, "no such thing"),
        (500, b'{"error": "it fell over\\nTraceback"}', 502, "it fell over"),
        (500, b'{"error": "Unable to parse \'inputs\': no array"}', 400, "Unable to parse"),
        (501, b'{"error": "decoupled"}', 400, "decoupled"),
        (503, b'{"error": "not ready"}', 503, "not ready"),
        (418, b"<html>", 502, "<html>"),
        (500, b"", 502, "Triton answered 500"),
        (400, b'{"error": "[request id: <id_unknown>] bad"}', 400, "bad"),
        (400, b'{"error": "Stub process \'add_0_0\' is not healthy."}', 502, "the process of"),
        (400, b'data: {"error": "of generate_stream"}', 400, "of generate_stream"),
    ],
)
def test_triton_s_errors_have_the_statuses_of_the_table(
    client: FlaskClient, triton: TritonsPort, came: int, body: bytes, status: int, text: str
) -> None:
    triton.answer = lambda: (came, {}, body)
    answer = client.post(INFER, data=HEADER)
    assert answer.status_code == status
    assert set(answer.json or {}) == {"error"}
    assert (answer.json or {})["error"].startswith(text)
    assert "Traceback" not in answer.text
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_the_deadline_is_that_of_the_other_routes(client: FlaskClient, triton: TritonsPort) -> None:
    end = threading.Event()
    triton.answer = lambda: (200, {}, b"{}") if end.wait(30) else (500, {}, b"")
    began = time.monotonic()
    answer = client.post(f"{INFER}?timeout_ms=200", data=HEADER)
    end.set()
    assert answer.status_code == 504
    assert (answer.json or {})["error"].startswith("Triton did not answer within 0.")
    assert time.monotonic() - began < 20


def test_slots_and_queue_are_those_of_the_other_routes(
    client: FlaskClient, triton: TritonsPort
) -> None:
    end = threading.Event()
    triton.answer = lambda: (200, {}, b"{}") if end.wait(30) else (500, {}, b"")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.application.test_client().post, INFER, data=HEADER)
        wait_for(lambda: triton.came, 20, "the first request")
        refused = [
            client.post(INFER, data=HEADER),
            client.post("/invocations", data=HEADER, content_type=SAGEMAKER),
        ]
        end.set()
        assert first.result().status_code == 200
    for answer in refused:
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
    assert client.post(INFER, data=HEADER).status_code == 200


def test_a_triton_that_dies_meanwhile_is_503(client: FlaskClient, triton: TritonsPort) -> None:
    triton.answer = lambda: (200, {"Content-Length": "100"}, b"cut off")
    answer = client.post(INFER, data=HEADER)
    assert answer.status_code == 503
    assert (answer.json or {})["error"].startswith("Triton does not answer; it may be starting")


def test_a_model_that_is_known_not_to_answer_is_refused_at_once(
    client: FlaskClient, triton: TritonsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, model: str) -> None:
        raise ModelUnavailable(f"{model} is stuck", hint="wait")

    monkeypatch.setattr(ModelLookup, "refuse", refuse)
    for answer in (client.post(INFER, data=HEADER), client.get("/v2/models/add/ready")):
        assert answer.status_code == 503
        assert answer.json == {"error": "add is stuck; wait"}
    assert not triton.came


def test_a_body_over_the_limit_is_refused_before_it_is_unpacked_whole(
    client: FlaskClient, triton: TritonsPort
) -> None:
    zeros = bytes(100 * 2**20)
    bodies = {
        "identity": bytes(2**20 + 1),
        "gzip": gzip.compress(zeros),
        "deflate": zlib.compress(zeros),
    }
    del zeros
    for encoding, data in bodies.items():
        tracemalloc.start()
        answer = client.post(INFER, data=data, headers={"Content-Encoding": encoding})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer.status_code == 413
        assert isinstance((answer.json or {})["error"], str)
        assert peak < 8 * 2**20
    assert not triton.came


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compressed_body_reaches_triton_unpacked(
    client: FlaskClient, triton: TritonsPort, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    sent = compress(HEADER + b"\0\1")
    headers = {**LENGTH, "Content-Encoding": encoding}
    assert client.post(INFER, data=sent, headers=headers).status_code == 200
    (_, _, there, body) = triton.came[-1]
    assert as_sent(there, body) == HEADER + b"\0\1"
    assert "Content-Encoding" not in there


@pytest.mark.parametrize(
    ("accepted", "asked"),
    [
        ("deflate", "deflate"),
        ("gzip", "gzip"),
        ("gzip;q=0, deflate;q=0.5", "deflate"),
        ("identity", "identity"),
        ("br", "identity"),
        (",;q=x", "identity"),
        ("", "identity"),
    ],
)
def test_triton_compresses_the_answer_as_the_caller_wants(
    client: FlaskClient, triton: TritonsPort, accepted: str, asked: str
) -> None:
    coded = {} if asked == "identity" else {"Content-Encoding": asked}
    triton.answer = lambda: (200, {**coded, "Inference-Header-Content-Length": "2"}, b"packed")
    answer = client.post(INFER, data=HEADER, headers={"Accept-Encoding": accepted})
    assert triton.came[-1][2]["Accept-Encoding"] == asked
    assert answer.headers.get("Content-Encoding") == coded.get("Content-Encoding")
    assert answer.data == b"packed"


@pytest.mark.parametrize(
    ("status", "code"), [(400, 400), (404, 404), (500, 502), (503, 503), (200, 200)]
)
def test_a_model_that_failed_a_request_is_probed_soon(
    client: FlaskClient, triton: TritonsPort, server: FakeTriton, status: int, code: int
) -> None:
    triton.answer = lambda: (status, {}, b'{"error": "why"}')
    assert client.post(INFER, data=HEADER).status_code == code
    assert server.take_failing() == ({"add"} if code == 502 else set())


def test_a_model_that_does_not_answer_in_time_is_probed_soon(
    client: FlaskClient, triton: TritonsPort, server: FakeTriton
) -> None:
    end = threading.Event()
    triton.answer = lambda: (200, {}, b"{}") if end.wait(30) else (500, {}, b"")
    assert client.post(f"{INFER}?timeout_ms=200", data=HEADER).status_code == 504
    end.set()
    assert server.take_failing() == {"add"}


@pytest.mark.parametrize(
    ("sent", "came", "missing"),
    [
        ({}, [], "'SUM', 'MORE'"),
        ({"outputs": [{"name": "MORE"}]}, [{"name": "SUM", "data": [1]}], "'MORE'"),
    ],
)
def test_an_answer_of_the_cache_without_outputs_is_an_error(
    client: FlaskClient,
    triton: TritonsPort,
    server: FakeTriton,
    sent: dict[str, object],
    came: list[object],
    missing: str,
) -> None:
    """Triton 2.51 answers 200 with `"outputs": []` where it keeps the error of an equal request."""
    more = (*ADD.outputs, TensorSpec("MORE", "FP32", (-1, 3)))
    server.signatures["add"] = replace(ADD, outputs=more, cached=True)
    triton.answer = lambda: (200, {}, json.dumps({"outputs": came}).encode())
    answer = client.post(INFER, data=json.dumps({"inputs": [], **sent}))
    assert answer.status_code == 502
    assert f"without its output {missing}" in (answer.json or {})["error"]
    assert "response cache keeps errors" in (answer.json or {})["error"]
    assert server.take_failing() == {"add"}


def test_a_refused_tensor_names_those_of_the_model(
    client: FlaskClient, triton: TritonsPort
) -> None:
    triton.answer = lambda: (400, {}, b'{"error": "unexpected inference input"}')
    assert client.post(INFER, data=HEADER).json == {
        "error": "unexpected inference input; the model takes `A` FP32 [-1, 3], "
        "`B` FP32 [-1, 3] and gives `SUM` FP32 [-1, 3]"
    }


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"config": "{}"}, 400),
        ({"file:1/model.onnx": "AAAA"}, 400),
        ({"unload_dependents": True}, 400),
        ([1], 400),
    ],
)
@pytest.mark.parametrize("action", ["load", "unload"])
def test_what_a_restart_would_lose_is_refused(
    client: FlaskClient, parameters: object, status: int, action: str
) -> None:
    body = json.dumps({"parameters": parameters})
    answer = client.post(f"/v2/repository/models/add/{action}", data=body)
    assert answer.status_code == status
    assert "parameters" in (answer.json or {})["error"]


def test_a_stream_that_nobody_reads_leaves_its_slot(client: FlaskClient) -> None:
    """As of a caller who is gone before the first byte is sent."""
    statuses: list[str] = []
    for _ in range(9):
        builder = EnvironBuilder("/v2/models/add/generate_stream", method="POST", data=b"{}")
        sent = client.application(builder.get_environ(), lambda status, _: statuses.append(status))
        sent.close()
    assert set(statuses) == {"200 OK"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            {"priority": 3, "deadline_us": "soon"},
            {"priority": 3},
        ),  # the caller's own is no deadline
        ({}, {}),
    ],
)
def test_triton_is_told_how_long_the_caller_waits(
    client: FlaskClient, triton: TritonsPort, given: dict[str, object], kept: dict[str, object]
) -> None:
    """It does not notice that a connection is closed, and goes on."""
    body = json.dumps({"inputs": [], "parameters": given})
    assert client.post(f"{INFER}?timeout_ms=2000", data=body).status_code == 200
    ((*_, came),) = triton.came
    parameters = json.loads(came)["parameters"]
    assert 0 < parameters.pop("timeout") <= 2e6
    assert 0 < parameters.pop("deadline_us") / 1e6 - time.time() <= 2
    assert parameters == kept
    assert (
        client.post("/v2/models/add/generate?timeout_ms=2000", data='{"x": 1}').status_code == 200
    )
    made = json.loads(triton.came[-1][-1])
    assert 0 < made["parameters"].pop("deadline_us") / 1e6 - time.time() <= 2
    assert made == {"x": 1, "parameters": {}}


def test_parameters_that_are_no_object_are_triton_s_to_refuse(
    client: FlaskClient, triton: TritonsPort
) -> None:
    client.post(INFER, data='{"inputs": [], "parameters": 5}')
    assert triton.came[-1][-1] == b'{"inputs": [], "parameters": 5}'
