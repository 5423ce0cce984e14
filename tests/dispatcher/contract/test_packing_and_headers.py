"""Compressed bodies, numbers that are not finite, and headers."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from clients.base import Environment
from clients.plugins.registry import Registry
from clients.tensors.classes import classify
from clients.tensors.client import TensorResult
from clients.triton.server import Tensors
from dispatcher.codecs import json_request
from dispatcher.codecs.responses import encode
from dispatcher.execution.admission import Admission
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.asking import ask
from tests.support.fake_triton import Arrays, FakeTriton
from tests.support.stand_ins import Red, assert_error, image


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("content_type", ["application/json", "application/jsonlines"])
def test_a_large_body_counts_as_one_however_it_was_packed(
    server: FakeTriton, built_in: Registry, repository: Path, packed: bool, content_type: str
) -> None:
    """3 MB in 3 kB, beside others that leave room for 2. Later there is room, for many of them."""
    admission = Admission(1, 1, 9, 8 * 2**20)
    done = admission.bodies.take(admission.bodies.most - 2 * 10**6)
    environment = Environment(server, repository)
    app = make_app(read_settings({}), built_in, environment, quiet(server), admission)
    body = json.dumps({"modelname": "bert_base", "payload": {"text": "a" * 3 * 10**6}}).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    sent = gzip.compress(body) if packed else body

    def response() -> TestResponse:
        client = app.test_client()
        return client.post("/invocations", data=sent, headers=headers, content_type=content_type)

    assert_error(response(), 429, "too_many_requests", "large requests under way")
    done()
    for _ in range(4):
        with response() as answer:
            assert "`text` has no [MASK]" in answer.text
    assert admission.bodies.held == 0


@pytest.mark.parametrize("content_type", ["application/json", "application/jsonlines"])
@pytest.mark.parametrize("route", ["invocations", "v2/models/double/infer"])
def test_json_that_takes_many_times_its_length_is_compared_with_the_memory(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, route: str, content_type: str
) -> None:
    """0.9 MB take 24 MB, 32 MiB by the count; a body may have a quarter of what is free."""
    body = gzip.compress(b'{"inputs": [], "z": [%s[]]}' % (b"[]," * 3 * 10**5))
    headers = {"Content-Encoding": "gzip", "Content-Type": content_type}

    def answer(total: int, free: int) -> str:
        monkeypatch.setattr(json_request, "total_memory", lambda: total * 2**20)
        monkeypatch.setattr(json_request, "free_memory", lambda: free * 2**20)
        with client.post(f"/{route}", data=body, headers=headers) as response:
            return response.text

    assert "there is no memory now for a body that takes 32 MiB" in answer(200, 120)
    assert "memory" not in answer(200, 140)
    assert "so many lists, objects and values" in answer(120, 140)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip", "deflate"])
def test_a_packed_body_is_unpacked(client: FlaskClient, encoding: str) -> None:
    compress = zlib.compress if encoding == "deflate" else gzip.compress
    body = json.dumps({"modelname": "bert_base", "payload": {"text": "a [MASK]"}}).encode()
    for content_type in ("application/json", "application/jsonlines", ""):
        headers = {"Content-Encoding": encoding, "Content-Type": content_type}
        response = client.post("/invocations", data=compress(body), headers=headers)
        assert response.status_code == 200
        assert "a many" in response.text


@pytest.mark.parametrize("zeros", [0, 1, 512, 70_000])
def test_all_parts_of_a_packed_body_count_but_for_zeros_behind_it(
    client: FlaskClient, zeros: int
) -> None:
    """RFC 1952, 2.2: one after the other, as `cat a.gz b.gz` makes them."""
    line = b'{"modelname": "bert_base", "payload": {"text": "a [MASK]"}}\n'
    data = gzip.compress(line) + gzip.compress(line) + bytes(zeros)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/jsonlines"}
    response = client.post("/invocations", data=data, headers=headers)
    assert [json.loads(one)["status"] for one in response.text.splitlines()] == [200, 200]


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("data", "encoding", "status", "code"),
    [
        (pack(b"{}") + b"and more", "gzip", 400, "bad_body"),
        (pack(b"") * 5000, "gzip", 400, "bad_body"),
        (b"", "gzip", 400, "bad_body"),
        (pack(b" " * 2**19) + pack(b" " * 2**19 + b" "), "gzip", 413, "too_large"),
        (pack(b" " * (2**20 + 1)), "gzip", 413, "too_large"),
        (b"no gzip", "gzip", 400, "bad_body"),
        (pack(b"{}" * 100)[:-9], "gzip", 400, "bad_body"),
        (zlib.compress(b" " * (2**20 + 1)), "deflate", 413, "too_large"),
        (zlib.compress(b"{}" * 100)[:-1], "deflate", 400, "bad_body"),
        (zlib.compress(b"{}", wbits=-15), "deflate", 400, "bad_body"),  # without zlib's header
        (pack(b"{}"), "deflate", 400, "bad_body"),
        (b"{}", "br", 415, "unsupported_type"),
    ],
)
def test_a_packed_body_that_is_not_taken(
    client: FlaskClient, data: bytes, encoding: str, status: int, code: str
) -> None:
    response = client.post("/invocations", data=data, headers={"Content-Encoding": encoding})
    assert_error(response, status, code)


def unsure(inputs: Tensors) -> Arrays:
    """Class 1 scores infinity, class 3 5.5, class 2 nothing that is a number; others less."""
    logits = np.full((len(inputs["input"]), 1000), -9, np.float32)
    logits[:, [1, 3, 2]] = [np.inf, 5.5, np.nan]
    return {"output": logits}


def test_scores_that_are_not_finite_are_null_and_counted_in_every_form(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.models_run["resnet"] = unsure
    img = {"img": image(Red)}
    texts = ["null:1:goldfish, Carassius auratus"]  # lines 2 and 4 of the model's labels
    texts.append("5.500000:3:tiger shark, Galeocerdo cuvieri")

    def asked(**body: Any) -> tuple[Any, str | None]:
        response = ask(client, parameters={"top_k": 2}, **body)
        assert "nan" not in response.text
        assert "inf" not in response.text
        return response.json, response.headers.get("X-Non-Finite-Values")

    one, count = asked(modelname="resnet", payload=img)
    assert (one["result"], count) == (texts, "1")
    several, count = asked(modelname="resnet", payload=[img, img, img])
    assert (several["result"], count) == ([texts] * 3, "3")
    named, count = asked(modelname=["resnet", "nosuch"], payload=img)
    assert (named["results"]["resnet"]["result"], count) == (texts, "1")
    request = {"modelname": "resnet", "payload": img, "parameters": {"top_k": 1000}}
    mixed = ask(client, requests=[request, request])
    assert mixed.headers["X-Non-Finite-Values"] == "4"
    assert (mixed.json or {})["results"][1]["result"][-1].startswith("null:2:")
    accept = {"Accept": "application/jsonlines"}
    lines = client.post("/infer/resnet?top_k=2", json={"payload": [img]}, headers=accept)
    assert json.loads(lines.text) == texts


def test_classes_of_a_tensor_that_are_not_finite_are_null_and_counted() -> None:
    scores = np.array([[1, np.nan, -np.inf]], np.float32)
    classes = classify(scores, 3, [b"a", b"b", b"c"], batched=True)
    text, count = encode(TensorResult("m", "", {"y": classes, "z": scores}, "", {"y"}).body())
    y, z = json.loads(text)["outputs"]
    assert y["data"] == ["1.000000:0:a", "null:2:c", "null:1:b"]
    assert z["data"] == [1, None, None]
    assert count == 4


def test_a_client_s_attributes_go_back_and_cannot_end_the_header(client: FlaskClient) -> None:
    name = "X-Amzn-SageMaker-Custom-Attributes"
    response = client.post("/infer/noted", json={"payload": {}}, headers={name: "trace=7"})
    assert response.headers[name] == "seen=7;evil=a??Set-Cookie: b"
    assert (response.json or {})["result"] == [None, None, 1.5], "what JSON cannot hold"
    assert response.headers["X-Non-Finite-Values"] == "2"
    other = ask(client, "/infer/bert_base", payload={"text": "[MASK]"})
    assert name not in other.headers


ANOTHER = "[0-9a-f]{32}"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Amzn-SageMaker-Inference-Id": "a-1", "X-Request-Id": "b"}, "a-1"),
        ({"X-Request-Id": "b.2_c"}, "b.2_c"),
        ({"X-Request-Id": "x" * 128}, "x" * 128),
        ({"X-Amzn-SageMaker-Inference-Id": "order 17/3", "X-Request-Id": "b"}, "b"),
        ({"X-Amzn-SageMaker-Inference-Id": "x" * 129, "X-Request-Id": "b"}, "b"),
        *[({"X-Request-Id": one}, ANOTHER) for one in ("ab<script>", "x" * 129, "a b", "ä", "")],
    ],
)
def test_the_caller_s_request_id_comes_back_unless_a_log_cannot_hold_it(
    client: FlaskClient, headers: dict[str, str], expected: str
) -> None:
    for path in ("/ping", "/nowhere"):
        given = client.get(path, headers=headers).headers["X-Request-Id"]
        assert given == expected or (expected == ANOTHER and re.fullmatch(ANOTHER, given))


def test_every_answer_says_where_the_time_went(client: FlaskClient) -> None:
    timing = ask(client, "/infer/bert_base", payload={"text": "[MASK]"}).headers["Server-Timing"]
    names = [part.partition(";")[0] for part in timing.split(", ")]
    assert names == ["queue", "decode", "inference", "postprocess"]
    assert "queue;dur=" in client.get("/nowhere").headers["Server-Timing"]
