"""What is passed on to Triton's HTTP port, and what becomes of its answers."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from flask.testing import FlaskClient
from werkzeug.test import EnvironBuilder

from clients.errors import ModelUnavailable
from dispatcher.execution.model_lookup import ModelLookup
from tests.conftest import wait_for
from tests.dispatcher.v2.conftest import TritonsPort
from tests.support.asking import tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error

HEADER = b'{"A": [1, 2, 3], "B": [1, 2, 3]}'
SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
GENERATE = "/v2/models/add/generate"


def test_no_other_header_of_the_caller_arrives(client: FlaskClient, triton: TritonsPort) -> None:
    client.post(GENERATE, data=HEADER, headers={"X-Api-Key": "secret", "Triton-Request-Id": "x"})
    ((_, _, headers, _),) = triton.came
    assert set(headers) == {"Host", "Accept-Encoding", "Content-Length"}


@pytest.mark.parametrize("size", ["x", "-1", "99", '"14', "99999999999999999999"])
def test_a_wrong_json_header_size_is_refused_in_the_usual_form(
    client: FlaskClient, triton: TritonsPort, size: str
) -> None:
    content_type = f"{SAGEMAKER};json-header-size={size}"
    answer = client.post("/invocations", data=HEADER, content_type=content_type)
    assert_error(answer, 400, "bad_header", "json-header-size in the Content-Type is ")
    assert not triton.came


NAMED = (
    "unexpected inference input; the model takes `A` FP32 [-1, 3], `B` FP32 [-1, 3] and gives "
    "`SUM` FP32 [-1, 3]"
)


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
        (400, b'{"error": "unexpected inference input"}', 400, NAMED),
    ],
)
def test_triton_s_errors_have_the_statuses_of_the_table(
    client: FlaskClient,
    triton: TritonsPort,
    server: FakeTriton,
    came: int,
    body: bytes,
    status: int,
    text: str,
) -> None:
    """A model that failed a request is probed soon."""
    triton.answer = lambda: (came, {}, body)
    answer = client.post(GENERATE, data=HEADER)
    assert answer.status_code == status
    assert set(answer.json or {}) == {"error"}
    assert (answer.json or {})["error"].startswith(text)
    assert "Traceback" not in answer.text
    assert ("Retry-After" in answer.headers) == (status == 503)
    assert server.take_failing() == ({"add"} if status == 502 else set())


@pytest.fixture
def end(triton: TritonsPort) -> Event:
    """What a request waits for."""
    end = Event()
    triton.answer = lambda: (200, {}, b"{}") if end.wait(30) else (500, {}, b"")
    return end


def test_the_deadline_is_that_of_the_other_routes(
    client: FlaskClient, server: FakeTriton, end: Event
) -> None:
    """A model that does not answer in time is probed soon."""
    began = time.monotonic()
    answer = client.post(f"{GENERATE}?timeout_ms=200", data=HEADER)
    end.set()
    assert server.take_failing() == {"add"}
    assert answer.status_code == 504
    assert (answer.json or {})["error"].startswith("Triton did not answer within 0.")
    assert time.monotonic() - began < 20


def test_slots_and_queue_are_those_of_the_other_routes(
    client: FlaskClient, triton: TritonsPort, end: Event
) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.application.test_client().post, GENERATE, data=HEADER)
        wait_for(lambda: triton.came, 20, "the first request")
        refused = [
            client.post(GENERATE, data=HEADER),
            client.post("/invocations", data=HEADER, content_type=SAGEMAKER),
        ]
        end.set()
        assert first.result().status_code == 200
    for answer in refused:
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
    assert client.post(GENERATE, data=HEADER).status_code == 200


def test_a_triton_that_dies_meanwhile_is_503(client: FlaskClient, triton: TritonsPort) -> None:
    triton.answer = lambda: (200, {"Content-Length": "100"}, b"cut off")
    answer = client.post(GENERATE, data=HEADER)
    assert answer.status_code == 503
    assert (answer.json or {})["error"].startswith("Triton does not answer; it may be starting")


def test_a_model_that_is_known_not_to_answer_is_refused_at_once(
    client: FlaskClient, triton: TritonsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, model: str) -> None:
        raise ModelUnavailable(f"{model} is stuck", hint="wait")

    monkeypatch.setattr(ModelLookup, "refuse", refuse)
    for answer in (client.post(GENERATE, data=HEADER), client.get("/v2/models/add/ready")):
        assert answer.status_code == 503
        assert answer.json == {"error": "add is stuck; wait"}
    assert not triton.came


def test_a_body_over_the_limit_is_refused_before_it_is_unpacked_whole(
    client: FlaskClient, triton: TritonsPort
) -> None:
    zeros = bytes(30 * 2**20)
    bodies = {
        "identity": bytes(2**20 + 1),
        "gzip": gzip.compress(zeros),
        "deflate": zlib.compress(zeros),
    }
    del zeros
    for encoding, data in bodies.items():
        tracemalloc.start()
        answer = client.post(GENERATE, data=data, headers={"Content-Encoding": encoding})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer.status_code == 413
        assert isinstance((answer.json or {})["error"], str)
        assert peak < 8 * 2**20
    assert not triton.came


@pytest.mark.parametrize(
    "parameters",
    [{"config": "{}"}, {"file:1/model.onnx": "AAAA"}, {"unload_dependents": True}, [1]],
)
@pytest.mark.parametrize("action", ["load", "unload"])
def test_what_a_restart_would_lose_is_refused(
    client: FlaskClient, parameters: object, action: str
) -> None:
    answer = client.post(f"/v2/repository/models/add/{action}", json={"parameters": parameters})
    assert answer.status_code == 400
    assert "parameters" in (answer.json or {})["error"]


def test_a_stream_that_nobody_reads_leaves_its_slot(client: FlaskClient) -> None:
    """As of a caller who is gone before the first byte is sent."""
    statuses: list[str] = []
    for _ in range(9):
        builder = EnvironBuilder("/v2/models/add/generate_stream", method="POST", data=b"{}")
        sent = client.application(builder.get_environ(), lambda status, _: statuses.append(status))
        sent.close()
    assert set(statuses) == {"200 OK"}


@pytest.mark.parametrize("kept", [{"priority": 3}, {}])
def test_triton_is_told_how_long_the_caller_waits(
    client: FlaskClient, triton: TritonsPort, server: FakeTriton, kept: dict[str, object]
) -> None:
    """It does not notice that a connection is closed, and goes on."""
    given = {**kept, "deadline_us": "soon"} if kept else {}  # the caller's own is no deadline
    fields = {"A": [1, 2, 3], "B": [1, 2, 3]}
    body = json.dumps({**fields, "parameters": given})
    assert client.post(f"{GENERATE}?timeout_ms=2000", data=body).status_code == 200
    assert server.take_failing() == set()
    made = json.loads(triton.came[-1][-1])
    assert 0 < made["parameters"].pop("deadline_us") / 1e6 - time.time() <= 2
    assert made == {**fields, "parameters": kept}
    tensors = [tensor(), tensor("B")]
    body = json.dumps({"inputs": tensors, "parameters": given})
    answer = client.post("/v2/models/add/infer?timeout_ms=2000", data=body)
    assert answer.status_code == 200
    assert 0 < server.calls[-1]["timeout"] <= 2
    assert server.calls[-1]["parameters"] == given  # the time goes first: see the tests on Triton


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"A": [1, 1e39, 3]}, "`A[1]` is 1e+39, which does not fit into FP32"),
        ({"A": [1, 2, "3"]}, "`A[2]` is '3'"),
        ({"A": [[1, 2, 3]]}, "`A[0]` is [1, 2, 3]"),
        ({"A": [True, 2, 3]}, "`A[0]` is true"),
        ({"A": [1, 2]}, "`A` has 2 elements; the model takes [-1, 3]"),
        ({"A": []}, "`A` has 0 elements"),
        ({"parameters": {"A": [1, 2]}}, "`A` has 2 elements"),
        ({"parameters": 5}, "`parameters` is 5"),
        ({"parameters": {"a": [1]}}, "the parameter 'a' is [1]"),
        ({"a\0b": 1}, "leave it out"),
        ({"parameters": {"sequence_id": 7}}, "`generate` names no sequence; the model 'add' keeps"),
        ({"sequence_end": True}, "leave sequence_id, sequence_start, sequence_end out"),
    ],
)
def test_fields_that_do_not_fit_never_reach_triton(
    client: FlaskClient, triton: TritonsPort, call: str, fields: dict[str, object], words: str
) -> None:
    answer = client.post(f"/v2/models/add/{call}", json={"B": [1, 2, 3], **fields})
    assert answer.status_code == 400
    assert words in (answer.json or {})["error"]
    assert not triton.came


def test_a_long_whole_number_goes_to_triton_as_the_float_that_it_is(
    client: FlaskClient, triton: TritonsPort
) -> None:
    """Of 10**308 Triton's reader makes 9.999999999999998e+307 for FP64."""
    client.post(GENERATE, json={"A": [2**100, 2, 3], "B": [1, 2, 3]})
    assert b'"A": [1.2676506002282294e+30, 2.0, 3.0]' in triton.came[-1][-1]


def test_null_is_no_number_both_ways(client: FlaskClient, triton: TritonsPort) -> None:
    """Bare NaN is not JSON (RFC 8259, 6); Triton reads and writes it."""
    triton.answer = lambda: (200, {}, b'data: {"SUM":[NaN,-Infinity,1.5]}\n\n')
    fields = {"A": [None, 2, 3], "B": [1, 2, 3]}
    answer = client.post("/v2/models/add/generate_stream", json=fields)
    assert answer.text == 'data: {"SUM":[null,null,1.5]}\n\n'
    assert b'"A": [NaN, 2.0, 3.0]' in triton.came[-1][-1]
    triton.answer = lambda: (200, {}, b'{"SUM":[NaN,Infinity,1.5]}')
    answer = client.post(GENERATE, json=fields)
    assert answer.text == '{"SUM":[null,null,1.5]}'
    assert answer.headers["X-Non-Finite-Values"] == "2"
