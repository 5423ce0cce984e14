"""Responses: their types, lines and pictures."""

from __future__ import annotations

import io
import json
from unittest.mock import Mock

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image

from clients.errors import DeadlineExceeded
from clients.images.drawing import Box, draw_boxes
from tests.support.asking import PNG
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
    ("path", "accept"),
    [
        ("/infer/yolov5", "text/html"),
        ("/infer/resnet", "image/png"),
        ("/infer/yolov5", "application/x-npy"),
        ("/infer/yolov5", "application/jsonlines"),
        ("/infer/yolov5", "application/json;q=0"),
        ("/infer/yolov5", "text/html, *;q=0."),
    ],
)
def test_else_it_is_406_and_the_model_is_not_asked(
    client: FlaskClient, server: FakeTriton, path: str, accept: str
) -> None:
    headers = {"Accept": accept, "Content-Type": "image/png"}
    response = client.post(path, data=PNG, headers=headers)
    assert_error(response, 406, "not_acceptable", "application/json")
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
    with pytest.raises(DeadlineExceeded):
        draw_boxes(picture, [Box(1, 1, 9, 9, "a", 0.5, 0)] * 9, "image/png", look)


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


def test_lines_in_neither_are_406(client: FlaskClient, server: FakeTriton) -> None:
    headers = {"Content-Type": LINES, "Accept": "text/csv"}
    response = client.post("/invocations", data=b"{}", headers=headers)
    assert_error(response, 406, "not_acceptable", "application/jsonlines", "application/json")
    assert server.calls == []


def test_objects_have_named_fields(client: FlaskClient) -> None:
    response = client.post("/infer/yolov5?format=objects", data=PNG, content_type="image/png")
    box = {"x1": 45.0, "y1": 22.5, "x2": 55.0, "y2": 27.5}
    car = {"label": "car", "index": 2, "score": 0.75, "box": box}
    assert (response.json or {})["result"] == [car]
    path = "/infer/resnet?format=objects&top_k=1"
    response = client.post(path, data=PNG, content_type="image/png")
    assert (response.json or {})["result"] == [{"label": "cock", "index": 7, "score": 1.0}]
