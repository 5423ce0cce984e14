"""Triton's protocol: what is read of bodies, what is refused, and what its HTTP port is sent."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.test import EnvironBuilder

from clients.base import Environment
from clients.errors import ModelUnavailable
from clients.plugins.registry import Registry
from clients.triton.server import Answer, Signature, TensorSpec
from dispatcher.errors import BadHeader
from dispatcher.execution.model_lookup import ModelLookup
from dispatcher.settings import read_settings
from dispatcher.v2.binary_tensors import read_header_length
from tests.conftest import PATIENCE_S, wait_for
from tests.support.application import make_app, quiet
from tests.support.asking import ADD, add, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.proxies import HttpAnswer, HttpRequest, http_server
from tests.support.stand_ins import assert_error


@dataclass
class TritonsPort:
    """Triton's HTTP port: how it answers each request, and what came."""

    port: int = 0
    answer: Callable[[], HttpAnswer] = lambda: (200, {}, b'{"outputs": []}')
    came: list[HttpRequest] = field(default_factory=list)


@pytest.fixture
def triton() -> Iterator[TritonsPort]:
    state = TritonsPort()
    with http_server(lambda: state.answer(), state.came) as state.port:  # noqa: PLW0108  it changes
        yield state


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton({"add": add}, {"add": ADD})


@pytest.fixture
def client(triton: TritonsPort, server: FakeTriton, tmp_path: Path) -> FlaskClient:
    """The application; one request of a model runs at a time, and none waits."""
    settings = read_settings(
        {
            "SAGEMAKER_SAFE_PORT_RANGE": f"{triton.port}-{triton.port + 3}",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add",
            "MODEL_SERVER_MAX_BODY_MB": "1",
            "MODEL_SERVER_THREADS": "1",
            "MODEL_SERVER_QUEUE": "0",
        }
    )
    environment = Environment(server, tmp_path)
    return make_app(settings, Registry(), environment, quiet(server)).test_client()


NUMBERS = np.array([[1, 2, 3]], np.float32)
LENGTH = "Inference-Header-Content-Length"
SAGEMAKER = "application/vnd.sagemaker-triton.binary+json"
BOTH = [
    {"name": name, "shape": [1, 3], "datatype": "FP32", "parameters": {"binary_data_size": 12}}
    for name in ("A", "B")
]


def one(**fields: Any) -> dict[str, Any]:
    """Return a request with a first input that has other fields."""
    return {"inputs": [{**BOTH[0], **fields}, BOTH[1]]}


def post(
    client: FlaskClient, header: Any, tensors: bytes = NUMBERS.tobytes() * 2, model: str = "add"
) -> Any:
    """Send tensors in binary."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    headers = {LENGTH: str(len(header))}
    return client.post(f"/v2/models/{model}/infer", data=header + tensors, headers=headers)


@pytest.mark.parametrize(("stated", "length"), [("0", 0), ("7", 7), ("10", 10), (None, None)])
def test_the_length_of_the_header_is_read(stated: str | None, length: int | None) -> None:
    assert read_header_length(stated, b"0123456789", "Length") == length


@pytest.mark.parametrize(
    "stated", ["", "x", "-1", "+1", "1.0", "0x1", "1 ", "1_0", "²", "١", "11", "9" * 4000]
)
def test_any_other_length_is_refused(stated: str) -> None:
    with pytest.raises(BadHeader) as caught:
        read_header_length(stated, b"0123456789", "Length")
    assert caught.value.message.startswith("Length is ")
    assert len(caught.value.message) < 100


def test_tensors_come_and_go_in_binary(client: FlaskClient, server: FakeTriton) -> None:
    every = {"parameters": {"binary_data_output": True}}
    named = {"outputs": [{"name": "SUM", "parameters": {"binary_data": True}}]}
    for wanted in (every, named):
        answer = post(client, {"inputs": BOTH, **wanted})
        assert answer.status_code == 200, answer.text
        assert answer.content_type == "application/octet-stream"
        length = int(answer.headers[LENGTH])
        (output,) = json.loads(answer.data[:length])["outputs"]
        size = {"parameters": {"binary_data_size": 12}}
        assert output == {"name": "SUM", "shape": [1, 3], "datatype": "FP32", **size}
        assert answer.data[length:] == np.array([2, 4, 6], "<f4").tobytes()
    assert post(client, {"inputs": BOTH}).json["outputs"][0]["data"] == [2, 4, 6]
    np.testing.assert_array_equal(server.calls[-1]["inputs"]["B"], NUMBERS)


@pytest.mark.parametrize("path", ["/invocations", "/infer/add", "/models/add/invoke"])
def test_sagemaker_s_type_states_the_length_both_ways(client: FlaskClient, path: str) -> None:
    document = {"inputs": BOTH, "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    kind = f"{SAGEMAKER};json-header-size={len(header)}"
    answer = client.post(path, data=header + NUMBERS.tobytes() * 2, content_type=kind)
    came, _, length = answer.content_type.partition(";json-header-size=")
    assert (answer.status_code, came) == (200, SAGEMAKER)
    assert answer.data[int(length) :] == np.array([2, 4, 6], "<f4").tobytes()


TEXTS = b"\1\0\0\0a\2\0\0\0bc\0\0\0\0"


def test_texts_in_binary_have_their_lengths_in_front(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.models_run["words"] = lambda inputs: {"OUT": inputs["IN"]}
    text = {"name": "IN", "datatype": "BYTES", "parameters": {"binary_data_size": len(TEXTS)}}
    specs = [(TensorSpec(name, "BYTES", (-1,)),) for name in ("IN", "OUT")]
    server.signatures["words"] = Signature(0, *specs)
    for shape, tensors, status in (
        ([3], TEXTS, 200),
        ([2], TEXTS, 400),
        ([3], TEXTS[:-1] + b"\1", 400),
        ([3], TEXTS[:-4] + b"\xff\xff\xff\xff", 400),
    ):
        inputs, parameters = [{**text, "shape": shape}], {"binary_data_output": True}
        document = {"inputs": inputs, "parameters": parameters}
        answer = post(client, document, tensors, "words")
        assert answer.status_code == status, answer.text
        if status == 200:
            assert answer.data.endswith(TEXTS)
    assert len(server.calls) == 1


HUGE = 2305843009213693952  # times 4 bytes it is 2^63
CLASSES = [{"name": "SUM", "parameters": {"classification": 2**31}}]
WRONG: dict[str, tuple[Any, str]] = {
    "2^63 bytes": (one(shape=[1, HUGE]), "`inputs[0].shape` is [1, 2305843009213693952]"),
    "1 GiB of which 12 bytes came": (one(shape=[1, 2**28]), "`A` wants FP32 [-1, 3]"),
    "24 bytes of which 12 came": (one(shape=[2, 3]), "3 elements; its shape"),
    "2^31": (one(shape=[2**31, 2]), "`inputs[0].shape`"),
    "a product beyond 2^64": (one(shape=[2**31 - 1] * 3), "`A` wants FP32 [-1, 3]"),
    "negative": (one(shape=[-1, -3]), "`inputs[0].shape` is [-1, -3]"),
    "no number": (one(shape=[1, 3.0]), "`inputs[0].shape`"),
    "33 dimensions": (one(shape=[1] * 33), "`inputs[0].shape`"),
    "no items": (one(shape=[0, 3], parameters={"binary_data_size": 0}), "12 bytes more came"),
    "of another model": (one(shape=[3, 1]), "`A` wants FP32 [-1, 3]; you sent FP32 [3, 1]"),
    "another type": (one(datatype="INT32"), "`A` wants FP32"),
    "no type": (one(datatype="FP99"), "'FP99'"),
    "fewer bytes": (one(parameters={"binary_data_size": 11}), "11 bytes; one FP32 has 4"),
    "more than came": (one(parameters={"binary_data_size": 25}), "24 bytes came"),
    "2^64 bytes": (one(parameters={"binary_data_size": 2**64}), "24 bytes came"),
    "-1 bytes": (one(parameters={"binary_data_size": -1}), "binary_data_size` is -1"),
    "true bytes": (one(parameters={"binary_data_size": True}), "binary_data_size` is true"),
    "twice": ({"inputs": [BOTH[0], BOTH[0]]}, "the name 'A' is given twice"),
    "both ways": (one(data=[1, 2, 3]), "`inputs[0].data` is [1, 2, 3]"),
    "no name": (one(name=None), "`inputs[0]`"),
    "another name": (one(name="C"), "no input `C`"),
    "parameters": (one(parameters=3), "`inputs[0].parameters` is 3"),
    "no inputs": ({"inputs": []}, "`inputs` is []"),
    "output twice": ({"inputs": BOTH, "outputs": [{"name": "SUM"}] * 2}, "given twice"),
    "no such output": ({"inputs": BOTH, "outputs": [{"name": "NO"}]}, "no output 'NO'"),
    "2^31 classes": ({"inputs": BOTH, "outputs": CLASSES}, "classification` is 2147483648"),
    "a list as a parameter": ({"inputs": BOTH, "parameters": {"a": [1]}}, "parameter 'a' is [1]"),
    "2^63 as a parameter": ({"inputs": BOTH, "parameters": {"priority": 2**63}}, "64 bits"),
    "a name of Triton's": ({"inputs": BOTH, "parameters": {"triton_x": 1}}, "'triton_x'"),
    "a name with NUL": ({"inputs": BOTH, "parameters": {"a\0b": 1}}, "leave it out"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_refused_before_the_model_is_asked(
    client: FlaskClient, server: FakeTriton, kind: str
) -> None:
    document, words = WRONG[kind]
    answer = post(client, document)
    assert answer.status_code == 400
    assert words in answer.json["error"]
    assert len(answer.json["error"]) < 400
    assert server.calls == []


@pytest.mark.parametrize("part", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["region", "byte_size", "offset"])
def test_shared_memory_is_refused_however_it_is_written(
    client: FlaskClient, server: FakeTriton, part: str, name: str
) -> None:
    tensor = {"name": "SUM" if part == "outputs" else "A", "datatype": "FP32", "shape": [1, 3]}
    named = {**tensor, "parameters": {f"shared_memory_{name}": 1}}
    plain = json.dumps({"inputs": BOTH, part: [named]})
    escaped = plain.replace("shared_memory", r"\u0073hared\u005fmemory")
    assert json.loads(plain) == json.loads(escaped)
    tensors = NUMBERS.tobytes() * (2 if part == "outputs" else 0)
    for header in (plain.encode(), escaped.encode(), plain.encode("utf-16")):
        answer = post(client, header, tensors)
        assert answer.status_code == 400
        assert f"`{part}[0].parameters` has 'shared_memory_{name}'" in answer.json["error"]
    assert server.calls == []


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"inputs": [}', b"[" * 200_000, b'{"a":' * 200_000],
    ids=["nothing", "open", "list", "number", "no text", "broken", "deep lists", "deep objects"],
)
def test_what_is_no_json_object_is_refused(client: FlaskClient, header: bytes) -> None:
    for call in ("infer", "generate", "generate_stream"):
        answer = client.post(f"/v2/models/add/{call}", data=header)
        assert answer.status_code == 400
        assert (answer.json or {})["error"].startswith("the body is ")


def test_of_a_field_that_is_there_twice_the_model_gets_what_was_checked(
    client: FlaskClient, server: FakeTriton
) -> None:
    """RFC 8259, 4: which one counts differs from reader to reader; here one reads for all."""
    header = json.dumps({"inputs": BOTH}).encode()
    header = b'{"inputs": [{"name": "A", "shape": [2305843009213693952]}], ' + header[1:]
    assert post(client, header).status_code == 200
    np.testing.assert_array_equal(server.calls[-1]["inputs"]["A"], NUMBERS)


HEADER = b'{"A": [1, 2, 3], "B": [1, 2, 3]}'
CONFIG = "/v2/models/add/config"
GENERATE = "/v2/models/add/generate"


def test_no_other_header_of_the_caller_arrives(client: FlaskClient, triton: TritonsPort) -> None:
    client.get(CONFIG, headers={"X-Api-Key": "secret", "Triton-Request-Id": "x"})
    ((_, _, headers, _),) = triton.came
    assert set(headers) == {"Host", "Accept-Encoding"}


@pytest.mark.parametrize("size", ["x", "-1", "99", '"14', "99999999999999999999"])
def test_a_wrong_json_header_size_is_refused_in_the_usual_form(
    client: FlaskClient, server: FakeTriton, size: str
) -> None:
    content_type = f"{SAGEMAKER};json-header-size={size}"
    answer = client.post("/invocations", data=HEADER, content_type=content_type)
    assert_error(answer, 400, "bad_header", "json-header-size in the Content-Type is ")
    assert not server.calls


@pytest.mark.parametrize(
    ("came", "body", "status", "text"),
    [
        (400, b'{"error": "bad tensor"}', 400, "bad tensor"),
        (404, b'{"error": "no such thing"}', 404, "no such thing"),
        (500, b'{"error": "it fell over\\nTraceback"}', 502, "it fell over"),
        (503, b'{"error": "not ready"}', 503, "not ready"),
        (418, b"<html>", 502, "<html>"),
        (500, b"", 502, "Triton answered 500"),
        (400, b'{"error": "[request id: <id_unknown>] bad"}', 400, "bad"),
    ],
)
def test_triton_s_errors_have_the_statuses_of_the_table(
    client: FlaskClient, triton: TritonsPort, came: int, body: bytes, status: int, text: str
) -> None:
    triton.answer = lambda: (came, {}, body)
    answer = client.get(CONFIG)
    assert answer.status_code == status
    assert set(answer.json or {}) == {"error"}
    assert (answer.json or {})["error"].startswith(text)
    assert "Traceback" not in answer.text
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_slots_and_queue_are_those_of_the_other_routes(
    client: FlaskClient, server: FakeTriton
) -> None:
    end = Event()
    server.models_run["add"] = lambda inputs: add(inputs) if end.wait(PATIENCE_S) else {}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.application.test_client().post, GENERATE, data=HEADER)
        wait_for(lambda: server.calls, "the first request")
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
    answer = client.get(CONFIG)
    assert answer.status_code == 503
    assert (answer.json or {})["error"].startswith("Triton does not answer; it may be starting")


def test_a_model_that_is_known_not_to_answer_is_refused_at_once(
    client: FlaskClient, server: FakeTriton, triton: TritonsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, model: str) -> None:
        raise ModelUnavailable(f"{model} is stuck", hint="wait")

    monkeypatch.setattr(ModelLookup, "refuse", refuse)
    for answer in (client.post(GENERATE, data=HEADER), client.get("/v2/models/add/ready")):
        assert answer.status_code == 503
        assert answer.json == {"error": "add is stuck; wait"}
    assert (triton.came, server.calls) == ([], [])


def test_a_body_over_the_limit_is_refused_before_it_is_unpacked_whole(
    client: FlaskClient, server: FakeTriton
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
    assert not server.calls


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"config": "{}"}, "not taken: a restart would lose it"),
        ({"file:1/model.onnx": "AAAA"}, "not taken: a restart would lose it"),
        ({"unload_dependents": True}, "not taken: each model is unloaded by itself"),
        ([1], "`parameters` is [1]"),
    ],
)
@pytest.mark.parametrize("action", ["load", "unload"])
def test_what_a_restart_would_lose_is_refused(
    client: FlaskClient, parameters: object, why: str, action: str
) -> None:
    answer = client.post(f"/v2/repository/models/add/{action}", json={"parameters": parameters})
    assert answer.status_code == 400
    assert why in (answer.json or {})["error"]


def test_a_stream_that_nobody_reads_leaves_its_slot(client: FlaskClient) -> None:
    """As of a caller who is gone before the first byte is sent."""
    statuses: list[str] = []
    for _ in range(9):
        builder = EnvironBuilder(f"{GENERATE}_stream", method="POST", data=HEADER)
        sent = client.application(builder.get_environ(), lambda status, _: statuses.append(status))
        sent.close()
    assert set(statuses) == {"200 OK"}


@pytest.mark.parametrize("kept", [{"priority": 3}, {}])
def test_triton_is_told_how_long_the_caller_waits(
    client: FlaskClient, server: FakeTriton, kept: dict[str, object]
) -> None:
    given = {**kept, "deadline_us": "soon"} if kept else {}
    tensors = {"inputs": [tensor(), tensor("B")]}
    for call, fields in (("infer", tensors), ("generate", {"A": [1, 2, 3]})):
        body = json.dumps({**fields, "parameters": given})
        answer = client.post(f"/v2/models/add/{call}?timeout_ms=50000", data=body)
        assert answer.status_code == 200
        assert 0 < server.calls[-1]["timeout"] <= 50
        # (The time goes first: see the tests on Triton.)
        assert server.calls[-1]["parameters"] == given


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
        ({"parameters": {"B": [1, 2, 3]}}, "`B` is given twice"),
        ({}, "input `A` is missing"),
        ({"parameters": 5}, "`parameters` is 5"),
        ({"parameters": {"a": [1]}}, "the parameter 'a' is [1]"),
        ({"a\0b": 1}, "leave it out"),
        ({"parameters": {"sequence_id": 7}}, "`generate` names no sequence; the model 'add' keeps"),
        ({"sequence_end": True}, "leave sequence_id, sequence_start, sequence_end out"),
    ],
)
def test_fields_that_do_not_fit_never_reach_triton(
    client: FlaskClient, server: FakeTriton, call: str, fields: dict[str, object], words: str
) -> None:
    answer = client.post(f"/v2/models/add/{call}", json={"B": [1, 2, 3], **fields})
    assert answer.status_code == 400
    assert words in (answer.json or {})["error"]
    assert not server.calls


@pytest.mark.parametrize(("gives", "words"), [(0, "gave none; POST"), (9, "gave several; POST")])
def test_generate_reads_no_more_than_two_answers(
    client: FlaskClient, server: FakeTriton, gives: int, words: str
) -> None:
    left = [Answer()] * gives
    ended = Event()

    def stream(*_: object, **__: object) -> Iterator[Answer]:
        try:
            while left:
                yield left.pop()
        finally:
            ended.set()

    server.signatures["add"] = replace(ADD, decoupled=True)
    server.stream = stream  # type: ignore[method-assign]
    answer = client.post(GENERATE, json={"A": [1, 2, 3]})
    assert (answer.status_code, words in (answer.json or {})["error"]) == (400, True)
    assert (len(left), ended.is_set()) == (max(0, gives - 2), True)


def test_outputs_win_over_parameters_of_the_same_name(
    client: FlaskClient, server: FakeTriton
) -> None:
    answer = Answer({"id": np.array([5]), "SUM": np.array([6])})
    answer.parameters = {"SUM": "x", "new": True}
    server.models_run["add"] = lambda _: answer
    shown = client.post(GENERATE, json={"A": [1, 2, 3], "id": "7"}).json
    assert shown == {"SUM": 6, "id": 5, "model_name": "add", "new": True}


def test_null_is_no_number_both_ways(client: FlaskClient, server: FakeTriton) -> None:
    """Bare NaN is not JSON (RFC 8259, 6)."""
    fields = {"A": [None, 2, 3], "B": [1, 2, math.inf]}
    answer = client.post(f"{GENERATE}_stream", json=fields)
    assert answer.text == 'data: {"SUM":[null,4.0,null],"model_name":"add"}\n\n'
    answer = client.post(GENERATE, json=fields)
    assert answer.json == {"SUM": [None, 4, None], "model_name": "add"}
    assert answer.headers["X-Non-Finite-Values"] == "2"
