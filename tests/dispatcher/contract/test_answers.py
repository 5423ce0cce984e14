"""Answers: their types, lines and pictures, and errors with their statuses, codes and texts."""

from __future__ import annotations

import io
import json
import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from clients import errors
from clients.base import Parameter
from clients.errors import DeadlineExceeded
from clients.images.drawing import draw_objects
from dispatcher.errors import ANSWERS
from tests.support.asking import PNG, ask
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image

LINES = "application/jsonlines"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json;verbose=true", "application/json"),
        ("text/html, application/json;q=0.5", "application/json"),
        ("image/png", "image/png"),
        ("image/jpeg", "image/jpeg"),
        ("image/*;q=0.9, application/json;q=0.8", "image/jpeg"),
        ("image/png; q=0.9, application/json; q=0.1", "image/png"),
        ("application/json; verbose=true ; q=0.1, image/png; q=0.9", "image/png"),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "application/json"),
        ("text/html, image/gif, image/jpeg, */*; q=0.2", "application/json"),
        ("text/html,image/webp,image/png,image/svg+xml,*/*;q=0.8", "application/json"),
        ("text/html;q=0.1, image/png", "image/png"),
        ("text/html;q=0, image/png, */*;q=0.1", "image/png"),
        ("application/json;q=0, */*", "image/jpeg"),
        ("text/html;q=.001, image/png, */*;q=0.1", "application/json"),
        ("*", "application/json"),
        ("application/json;q=.5, image/png;q=1.0", "image/png"),
        ("image/png;q=1_0, image/png;q=2, json, ;q=1, application/json", "application/json"),
    ],
)
def test_the_answer_is_of_a_type_that_is_accepted(
    client: FlaskClient, accept: str, content_type: str
) -> None:
    headers = {"Accept": accept, "Content-Type": "image/png"}
    response = client.post("/infer/yolov5", data=PNG, headers=headers)
    assert response.status_code == 200
    assert response.content_type == content_type


@pytest.mark.parametrize(
    ("path", "content_type", "accept", "words"),
    [
        ("/infer/yolov5", "image/png", "text/html", []),
        ("/infer/resnet", "image/png", "image/png", []),
        ("/infer/yolov5", "image/png", "application/x-npy", []),
        ("/infer/yolov5", "image/png", "application/jsonlines", []),
        ("/infer/yolov5", "image/png", "application/json;q=0", []),
        ("/infer/yolov5", "image/png", "text/html, *;q=0.", []),
        ("/invocations", LINES, "text/csv", [LINES]),
    ],
)
def test_else_it_is_406_and_the_model_is_not_asked(
    client: FlaskClient,
    server: FakeTriton,
    path: str,
    content_type: str,
    accept: str,
    words: list[str],
) -> None:
    headers = {"Accept": accept, "Content-Type": content_type}
    response = client.post(path, data=PNG, headers=headers)
    assert_error(response, 406, "not_acceptable", "application/json", *words)
    assert server.calls == []


@pytest.mark.parametrize("form", ["compact", "objects"])
def test_a_detector_draws_its_boxes(client: FlaskClient, form: str) -> None:
    """The box found has its left edge at x = 45 and its right one at 55, from y 22.5 to 27.5."""
    headers = {"Accept": "image/png", "Content-Type": "image/png"}
    response = client.post(f"/infer/yolov5?format={form}", data=PNG, headers=headers)
    drawn = np.asarray(Image.open(io.BytesIO(response.data)).convert("RGB"))
    assert drawn.shape == (50, 100, 3)
    changed = (drawn != [255, 0, 0]).any(2)
    assert changed[27, 45:56].all(), "the box's lower edge"
    assert not changed[:21].any(), "above the box nothing is drawn"
    assert not changed[:, :43].any()


def test_drawing_ends_with_the_time_of_the_request() -> None:
    look = Mock(side_effect=[None, None, DeadlineExceeded("too late")])
    picture = np.zeros((20, 20, 3), np.uint8)
    box = {"x1": 1, "y1": 1, "x2": 9, "y2": 9}
    found = {"label": "a", "index": 0, "score": 0.5, "box": box}
    with pytest.raises(DeadlineExceeded):
        draw_objects(picture, [found] * 9, "image/png", look)


def test_a_list_comes_in_lines_where_they_are_accepted(client: FlaskClient) -> None:
    body = {"payload": [{"img": image(Red)}, {"img": image([0, 0, 255])}]}
    response = client.post("/infer/resnet?top_k=1", json=body, headers={"Accept": LINES})
    assert "Content-Length" not in response.headers, "nobody waits for all of it"
    assert [json.loads(line) for line in response.text.splitlines()] == [
        ["1.000000:7:cock"],
        ["1.000000:5:electric ray, crampfish, numbfish, torpedo"],
    ]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", LINES),
        ("*/*", LINES),
        ("application/jsonlines", LINES),
        ("application/jsonlines, application/json", LINES),
        ("application/json, text/plain, */*", LINES),  # axios
        ("application/json", "application/json"),
        ("application/json; charset=utf-8", "application/json"),
        ("application/json, application/*+json", "application/json"),  # Spring's RestTemplate
        ("application/json, */*;q=0.5", "application/json"),
        ("application/json;q=0.5, application/jsonlines", LINES),
    ],
)
def test_lines_are_answered_in_lines_or_in_one_document_of_json(
    client: FlaskClient, accept: str, content_type: str
) -> None:
    """In order, a bad line in its place, an empty one passed over; no lines are none."""
    one = '{"modelname": "%s", "payload": {"text": "%s"}, "parameters": {"top_k": 1}}'
    asked = [("bert_base", "a [MASK]"), ("nosuch", ""), ("bert_base", "no blank")]
    lines = [*(one % each for each in asked), "not json", "", one % ("bert_base", "b [MASK]")]
    headers = {"Content-Type": LINES, "Accept": accept}
    response = client.post("/invocations", data="\n".join(lines), headers=headers)
    assert response.status_code == 200
    assert response.content_type == content_type
    empty = client.post("/invocations", data=b"\n", headers=headers)
    if content_type == LINES:
        assert response.headers["X-Accel-Buffering"] == "no"
        answers = [json.loads(line) for line in response.text.splitlines()]
        assert empty.data == b""
    else:
        assert set(response.json or {}) == {"results"}
        answers = (response.json or {})["results"]
        assert empty.json == {"results": []}
    assert [answer["status"] for answer in answers] == [200, 404, 400, 400, 200]
    assert [answers[n]["result"][0]["token"] for n in (0, 4)] == ["a many", "b many"]


def test_objects_have_named_fields(client: FlaskClient) -> None:
    response = client.post("/infer/yolov5?format=objects", data=PNG, content_type="image/png")
    box = {"x1": 45.0, "y1": 22.5, "x2": 55.0, "y2": 27.5}
    car = {"label": "car", "index": 2, "score": 0.75, "box": box}
    assert (response.json or {})["result"] == [car]
    path = "/infer/resnet?format=objects&top_k=1"
    response = client.post(path, data=PNG, content_type="image/png")
    assert (response.json or {})["result"] == [{"label": "cock", "index": 7, "score": 1.0}]


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
