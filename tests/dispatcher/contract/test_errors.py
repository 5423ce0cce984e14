"""Errors: their statuses, codes and texts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients import errors
from clients.base import Parameter
from dispatcher.errors import ANSWERS
from tests.support.asking import ask
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["not JSON", "empty"]),
        (b"{", ["not JSON"]),
        (b"\xff\xfe", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"[1]", ["not a JSON object"]),
        (b'{"payload": {}}', ["`modelname` is missing"]),
        (b'{"modelname": 7, "payload": {}}', ["`modelname` is 7", "the name of a model"]),
        (b'{"modelname": "", "payload": {}}', ["`modelname` is ''"]),
        (b'{"modelname": "resnet"}', ["`payload` is missing"]),
        (b'{"modelname": "resnet", "payload": "x"}', ["`payload` is 'x'", "an object"]),
        (b'{"modelname": "resnet", "payload": []}', ["list of 0", "1 to 1000"]),
        (b'{"modelname": "resnet", "payload": [1]}', ["`payload[0]` is 1"]),
        (b'{"modelname": "resnet", "payload": {}, "top_k": 3}', ["'top_k'", "parameters"]),
        (b'{"modelname": "resnet", "img": "x"}', ["'img'", "input goes into `payload`"]),
        (b'{"text": "A [MASK]."}', ["'text'", "input goes into `payload`"]),
        (b'{"model_name": "resnet", "payload": {}}', ["'model_name'", "write `modelname`"]),
        (b'{"model": "resnet", "img": "x"}', ["'model'", "write `modelname`"]),
        (b'{"modelName": "resnet", "payload": {}}', ["'modelName'", "write `modelname`"]),
        (b'{"modelname": "resnet", "model_version": 1}', ["write `modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "parameters": 3}', ["`parameters` is 3"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": "x"}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": 0}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": true}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": "../1"}', ["`modelversion`"]),
    ],
)
def test_a_bad_body_says_what_was_expected(
    client: FlaskClient, body: bytes, words: list[str]
) -> None:
    response = client.post("/invocations", data=body, content_type="application/json")
    assert_error(response, 400, "bad_body", *words)


@pytest.mark.parametrize(
    ("modelname", "payload", "words"),
    [
        ("resnet", {}, ["`img` is missing", "nothing", "base64 of a picture"]),
        ("resnet", {"image": "x"}, ["`img` is missing", "'image'"]),
        ("resnet", {"img": 5}, ["`img` is 5", "base64 of a picture"]),
        ("resnet", {"img": ""}, ["`img` is ''"]),
        ("resnet", {"img": "not base64!"}, ["`img` is not base64"]),
        ("yolov5", {"img": "aGVsbG8gd29ybGQ="}, ["not a picture", "hello wo"]),
        ("bert_base", {"text": "no blank here"}, ["no [MASK]"]),
        ("bert_base", {"text": "[MASK] " + "word " * 600}, ["603 tokens", "at most 512"]),
        ("bert_base", {"text": ["[MASK]"]}, ["`text` is ['[MASK]']"]),
        ("double", {"numbers": "12"}, ["`numbers` is '12'", "list of numbers"]),
        ("double", {"numbers": [[1], [2, 3]]}, ["nested evenly"]),
        ("resnet", [{"img": image(Red)}] * 5 + [{"img": "?"}], ["payload[5]:"]),
    ],
)
def test_a_bad_payload_says_what_was_expected(
    client: FlaskClient, modelname: str, payload: Any, words: list[str]
) -> None:
    assert_error(ask(client, modelname=modelname, payload=payload), 400, "bad_payload", *words)


@pytest.mark.parametrize(
    ("modelname", "parameters", "words"),
    [
        ("resnet", {"top_k": 0}, ["`parameters.top_k` is 0", "from 1 to 1000"]),
        ("resnet", {"top_k": 1001}, ["1001"]),
        ("resnet", {"top_k": 2.5}, ["whole number"]),
        ("resnet", {"top_k": "3"}, ["`parameters.top_k` is '3'"]),
        ("resnet", {"top_k": True}, ["true"]),
        ("resnet", {"confidence": 0.5}, ["'confidence' is not known", "top_k"]),
        ("yolov5", {"iou": math.nan}, ["nan"]),
    ],
)
def test_a_bad_parameter_says_what_was_expected(
    client: FlaskClient, modelname: str, parameters: Any, words: list[str]
) -> None:
    response = ask(client, modelname=modelname, payload={"img": "x"}, parameters=parameters)
    assert_error(response, 400, "bad_parameter", *words)


@pytest.mark.parametrize("body", ["1e400", "-1e400", "1" + "0" * 400, "NaN", "Infinity"])
def test_a_parameter_without_limits_is_a_finite_number(body: str) -> None:
    limitless = Parameter(1.0)
    assert limitless.expected == "a number"
    assert Parameter(1, low=0).expected == "a whole number from 0"
    assert Parameter(1, high=123456789).expected == "a whole number up to 123456789"
    with pytest.raises(errors.BadParameter, match=r"`parameters\.x` is "):
        limitless.read("x", json.loads(body))
    with pytest.raises(errors.BadParameter, match=r"`parameters\.x` is "):
        limitless.read_text("x", body.replace("Infinity", "inf"))
    assert Parameter(float("inf")).read("x", float("inf")) == float("inf")  # its own default


def test_an_unknown_model_lists_what_is_served_nearest_first(client: FlaskClient) -> None:
    response = ask(client, modelname="yolo5", payload={})
    assert_error(response, 404, "unknown_model", "'yolo5'", "the served models are: yolov5, ")
    response = ask(client, modelname="resnet", modelversion=7, payload={"img": image(Red)})
    assert_error(response, 404, "unknown_version")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (kind("what happened"), *ANSWERS[kind])
        for kind in ANSWERS
        if kind.__module__ == "clients.errors"
    ],
)
def test_what_the_model_server_says_is_passed_on(
    client: FlaskClient, server: FakeTriton, error: Exception, status: int, code: str
) -> None:
    server.models_run["resnet"] = error
    response = ask(client, modelname="resnet", payload={"img": image(Red)})
    assert_error(response, status, code, "what happened")
    assert ("Retry-After" in response.headers) == (status in {429, 503})


def test_every_error_of_the_contract_has_an_answer() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert set(kinds) <= set(ANSWERS)
    assert len({code for _, code in ANSWERS.values()}) == len(ANSWERS), "a code means one thing"


def test_routing_errors_have_the_same_shape(client: FlaskClient) -> None:
    missing = client.get("/nowhere")
    assert_error(missing, 404, "not_found", "POST /invocations")
    assert "'/nowhere'" in missing.json["error"]["message"]
    response = client.get("/invocations")
    assert_error(response, 405, "method_not_allowed", "Allow")
    assert "POST" in response.headers["Allow"]


def test_a_body_over_the_limit_is_413(client: FlaskClient) -> None:
    response = client.post("/invocations", data=b" " * (2**20 + 1))
    assert_error(response, 413, "too_large", "1 MiB")
