"""Requests that name their picture or text by its key in S3."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from flask.testing import FlaskClient

from clients.base import Client
from clients.errors import TooLargeAtOnce
from dispatcher.s3.client import S3
from tests.dispatcher.s3.conftest import ODD, Colour, MakeClient, Slow, png
from tests.support.s3 import BUCKET, OTHER_BUCKET, S3Server
from tests.support.stand_ins import assert_error

RED, LIME, BLUE = [255, 0, 0], [0, 255, 0], [0, 0, 255]


def key(name: str) -> dict[str, str]:
    return {"s3_key": f"images/{name}.png"}


def ask(client: FlaskClient, model: Any, payload: Any, **others: Any) -> Any:
    body = {"modelname": model, "payload": payload, **others}
    response = client.post("/invocations", json=body)
    assert response.status_code == 200, response.text
    return response.json


def test_a_family_answers_as_if_the_picture_had_been_sent(client: FlaskClient) -> None:
    sent = {"img": base64.b64encode(png("red")).decode()}
    assert ask(client, "resnet", key("red")) == ask(client, "resnet", sent)


@pytest.mark.parametrize(
    ("body", "pixel"),
    [
        ({"s3_key": "images/lime.png"}, LIME),
        ({"s3_key": ODD}, BLUE),  # these characters are a part of the key
        ({"s3_uri": f"s3://{BUCKET}/images/lime.png"}, LIME),
        ({"s3_uri": f"s3://{OTHER_BUCKET}/images/red.png"}, RED),
        ({"payload": {"s3_key": "images/lime.png"}}, LIME),
        ({"payload": {"s3_uri": f"s3://{BUCKET}/images/lime.png"}}, LIME),
    ],
)
def test_a_class_knows_nothing_of_s3(client: FlaskClient, body: Any, pixel: list[int]) -> None:
    response = client.post("/infer/colour", json=body)
    assert response.json == {"modelname": "colour", "result": {"pixel": pixel, "others": []}}
    assert "s3;dur=" in response.headers["Server-Timing"]


def test_a_text_is_the_object_in_utf_8(client: FlaskClient) -> None:
    assert ask(client, "letters", {"s3_key": "texts/umlauts.txt"})["result"] == 3
    masked = {"text": "the cat has as [MASK] paws\n"}
    stored = {"s3_key": "texts/note.txt"}
    assert ask(client, "bert_base", stored) == ask(client, "bert_base", masked)


def test_other_fields_of_the_payload_stay(client: FlaskClient) -> None:
    came = ask(client, "colour", {**key("red"), "question": "which?"})
    assert came["result"] == {"pixel": RED, "others": ["question"]}
    body = {"modelname": "resnet", "payload": {**key("red"), "question": "which?"}}
    assert_error(client.post("/invocations", json=body), 400, "bad_payload", "question")


def test_lists_and_lines_keep_their_order(client: FlaskClient) -> None:
    names = ["red", "lime", "blue"] * 7
    pixels = [RED, LIME, BLUE] * 7
    came = ask(client, "colour", [key(name) for name in names])
    assert [one["pixel"] for one in came["result"]] == pixels
    sent = {"img": base64.b64encode(png("blue")).decode()}
    mixed = ask(client, "resnet", [key("red"), sent, key("lime")])["result"]
    alone = [ask(client, "resnet", one)["result"] for one in (key("red"), sent, key("lime"))]
    assert mixed == alone
    lines = "\n".join(json.dumps({"modelname": "colour", **key(name)}) for name in names)
    response = client.post("/invocations", data=lines, content_type="application/jsonlines")
    came = [json.loads(line) for line in response.text.splitlines()]
    assert [one["result"]["pixel"] for one in came] == pixels


def test_each_of_several_requests_has_its_own_error(client: FlaskClient) -> None:
    requests = [
        {"modelname": "colour", **key("red")},
        {"modelname": "colour", **key("nothing")},
        {"modelname": "colour", "s3_key": "../x"},
        {"modelname": "colour", "payload": [key("lime"), key("blue")]},
    ]
    response = client.post("/invocations", json={"requests": requests})
    came = (response.json or {})["results"]
    assert [one["status"] for one in came] == [200, 404, 400, 200]
    assert came[1]["error"]["code"] == "object_not_found"
    assert [one["pixel"] for one in came[3]["result"]] == [LIME, BLUE]


def test_what_is_wrong_with_an_object_names_it(client: FlaskClient, pictures: S3Server) -> None:
    body = {"modelname": "colour", "payload": [key("red"), key("nothing")]}
    response = client.post("/invocations", json=body)
    assert_error(response, 404, "object_not_found", "payload[1]", BUCKET, "images/nothing.png")
    pictures.put("images/half.png", png("red")[:40])
    pictures.put("texts/latin.txt", "café".encode("latin-1"))
    half, latin = (f"s3://{BUCKET}/{name}" for name in ("images/half.png", "texts/latin.txt"))
    response = client.post("/infer/resnet", json={"s3_key": "images/half.png"})
    assert_error(response, 400, "bad_payload", f"{half}: `img` is not a picture")
    body = {"modelname": "resnet", "payload": [key("red"), key("half")]}
    response = client.post("/invocations", json=body)
    assert_error(response, 400, "bad_payload", f"payload[1]: {half}: `img`")
    response = client.post("/infer/bert_base", json={"s3_key": "texts/latin.txt"})
    assert_error(response, 400, "bad_payload", f"{latin}: the text is not UTF-8", "store texts")
    response = client.post("/infer/bert_base", json={"s3_key": "images/red.png"})
    assert_error(response, 415, "unsupported_media", "images/red.png: a picture came")


@pytest.fixture
def get() -> Iterator[Any]:
    """Counts what is read of S3."""
    with patch.object(S3, "get", autospec=True, side_effect=S3.get) as get:
        yield get


def test_an_object_asked_by_several_models_or_where_lines_would_do_too_is_read_once(
    client: FlaskClient, get: Any
) -> None:
    """Where the model does not stream its answer is one document."""
    came = ask(client, ["resnet", "colour", "slow"], key("red"))["results"]
    assert [one["status"] for one in came.values()] == [200, 200, 200]
    assert came["colour"]["result"]["pixel"] == RED
    assert get.call_count == 1
    came = ask(client, ["colour", "slow"], [key(name) for name in ("red", "lime", "blue")])
    assert [one["pixel"] for one in came["results"]["slow"]["result"]] == [RED, LIME, BLUE]
    assert get.call_count == 4
    accept = {"Accept": "application/json, application/jsonlines"}
    response = client.post("/infer/colour", json=key("red"), headers=accept)
    assert (response.json or {})["result"]["pixel"] == RED
    assert get.call_count == 5


def test_a_batch_that_is_halved_is_read_once(client: FlaskClient, get: Any) -> None:
    def one_alone(self: Client, payloads: Any) -> Any:
        if len(payloads) > 1:
            raise TooLargeAtOnce("too large at once")
        return [self.inference(payloads[0])]

    names = ("red", "lime", "blue")
    with (
        patch.object(Colour, "inference_batch", one_alone),
        patch.object(Colour, "max_batch_size", 4),
    ):
        came = ask(client, "colour", [key(name) for name in names])["result"]
    assert [one["pixel"] for one in came] == [RED, LIME, BLUE]
    assert get.call_count == len(names)


def test_objects_of_requests_that_fail_make_room_for_the_next(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are read at a time: models that do not exist, and wrong parameters."""
    monkeypatch.setattr("dispatcher.s3.reading.S3_AT_A_TIME", 1)
    client = make(MODEL_SERVER_TIMEOUT="5")
    wrong = [{"modelname": "none"}, {"modelname": "colour", "parameters": {"no": 1}}]
    requests = [{**one, "s3_key": f"images/{n}.png"} for n in range(4) for one in wrong]
    requests.append({"modelname": "colour", **key("red")})
    response = client.post("/invocations", json={"requests": requests})
    statuses = [one["status"] for one in (response.json or {})["results"]]
    assert statuses == [404, 400] * 4 + [200]


def test_the_next_objects_are_read_while_a_model_runs(make: MakeClient) -> None:
    """One runs at a time; the second object is asked for before the first run ends."""
    client = make(MODEL_SERVER_THREADS="1")
    bodies: list[Any] = [
        {"requests": [{"modelname": "slow", **key(name)} for name in ("red", "lime", "blue")]},
        {"modelname": "slow", "payload": [key(name) for name in ("red", "lime", "blue")]},
    ]
    get = S3.get
    asked: list[float] = []

    def noted(*each: Any) -> bytes:
        asked.append(time.monotonic())
        return get(*each)

    for body in bodies:
        Slow.ended.clear()
        asked.clear()
        with patch.object(S3, "get", noted), client.post("/invocations", json=body) as response:
            assert response.status_code == 200
        assert len(asked) == len(Slow.ended) == 3
        assert asked[1] < Slow.ended[0]


@pytest.mark.parametrize(
    ("fields", "status", "code", "word"),
    [
        ({"s3_key": ""}, 400, "bad_payload", "expected the object's key"),
        ({"s3_key": 7}, 400, "bad_payload", "expected the object's key"),
        ({"s3_key": None}, 400, "bad_payload", "expected the object's key"),
        ({"s3_key": "images/../private/a"}, 400, "bad_payload", ".."),
        ({"s3_key": "images/\0"}, 400, "bad_payload", "control"),
        ({"s3_key": "\ud800"}, 400, "bad_payload", "UTF-8"),
        ({"s3_key": "k" * 1025}, 400, "bad_payload", "1024"),
        ({"s3_key": "a", "s3_uri": f"s3://{BUCKET}/a"}, 400, "bad_payload", "one of them"),
        ({"s3_uri": "http://169.254.169.254/latest"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"s3_uri": "file:///etc/passwd"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"s3_uri": "s3://evil.example:80@x/a"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"s3_uri": "s3://arn:aws:s3:::x/a"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"s3_uri": f"s3://{BUCKET}/"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"s3_uri": "s3://another-bucket/a"}, 403, "object_forbidden", "S3_ALLOWED_INPUTS"),
        ({"s3_uri": f"s3://{OTHER_BUCKET}/models/a"}, 403, "object_forbidden", "private/images/"),
        ({"s3_key": "a", "endpoint_url": "http://evil"}, 400, "bad_body", "endpoint_url"),
        # No query: it is a part of the key, and there is no such object.
        ({"s3_key": "images/red.png?versionId=1"}, 404, "object_not_found", "versionId"),
    ],
)
def test_what_is_no_allowed_object_is_refused(
    client: FlaskClient, fields: Any, status: int, code: str, word: str
) -> None:
    assert_error(client.post("/infer/colour", json=fields), status, code, word)


def test_without_a_bucket_a_key_is_refused_and_a_class_may_have_such_a_field(
    make: MakeClient,
) -> None:
    client = make(S3_BUCKET_NAME="")
    assert_error(client.post("/infer/resnet", json=key("red")), 400, "bad_body", "S3_BUCKET_NAME")
    stored = client.post("/infer/colour", json={"payload": {"img": ""}, "output": {}})
    assert_error(stored, 400, "bad_body", "S3_BUCKET_NAME")
    assert_error(client.post("/infer/colour", json=key("red")), 400, "bad_payload", "`img`")


def test_unknown_models_are_refused_before_the_object_is_read(client: FlaskClient) -> None:
    line = json.dumps({"modelname": "none", **key("red")})
    with patch.object(S3, "get", autospec=True) as get:
        response = client.post("/infer/none", json=key("red"))
    assert_error(response, 404, "unknown_model")
    assert not get.called
    lines = client.post("/invocations", data=line, content_type="application/jsonlines")
    assert (lines.status_code, json.loads(lines.text)["error"]["code"]) == (200, "unknown_model")
