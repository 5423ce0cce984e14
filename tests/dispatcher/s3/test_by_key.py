"""Requests that name their picture or text by its key in S3, and answers that are stored there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import pytest
from flask.testing import FlaskClient

from clients.base import Client
from clients.errors import TooLargeAtOnce
from dispatcher.codecs.content_types import LargeBodies
from dispatcher.codecs.json_request import read_json
from dispatcher.codecs.metadata import Metadata
from dispatcher.model_request import ModelRequest
from dispatcher.s3.client import S3
from dispatcher.s3.step import Output, Step
from dispatcher.settings import read_settings
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


def test_a_file_of_any_type_is_the_object(client: FlaskClient) -> None:
    assert ask(client, "size", {"s3_key": "texts/umlauts.txt"})["result"] == 6
    assert ask(client, "size", [key("red"), key("red")])["result"] == [len(png("red"))] * 2


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
    client = make()
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
    get, asked = S3.get, list[Any]()

    def noted(*each: Any) -> bytes:
        asked.append(each)
        if len(asked) == 2:
            Slow.may_end.set()
        return get(*each)

    for body in bodies:
        Slow.may_end.clear()
        asked.clear()
        with patch.object(S3, "get", noted), client.post("/invocations", json=body) as response:
            assert response.status_code == 200
        assert len(asked) == 3


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


ONE, TWO = key("red"), key("lime")
RESULT = {"pixel": [255, 0, 0], "others": []}
STORED = {"modelname": "colour", "result": RESULT}


def read(s3: S3Server, key: str, bucket: str = BUCKET) -> Any:
    content, content_type = s3.read(key, bucket)
    assert content_type == "application/json"
    return json.loads(content)


def place(key: str, bucket: str = BUCKET) -> dict[str, str]:
    return {"s3_key": key, "s3_uri": f"s3://{bucket}/{key}"}


DEFAULT = "results/colour/latest/pictures/images/red.png.json"


@pytest.mark.parametrize(
    ("output", "name"), [({"s3_key": "results/one.json"}, "results/one.json"), ({}, DEFAULT)]
)
def test_an_answer_is_stored_where_the_request_says(
    client: FlaskClient, pictures: S3Server, output: Any, name: str
) -> None:
    """The default name has the key and the model."""
    answer = client.post("/infer/colour", json={**ONE, "output": output}).json
    assert answer == {**STORED, "output": place(name)}
    assert read(pictures, name) == STORED


def test_the_prefix_of_the_settings_stores_every_answer_by_key(
    make: MakeClient, pictures: S3Server
) -> None:
    client = make(S3_RESULTS_PREFIX="all/answers")
    assert "output" in client.post("/infer/colour", json=ONE).json
    assert read(pictures, "all/answers/colour/latest/pictures/images/red.png.json") == STORED
    assert "output" not in client.post("/infer/letters", json={"payload": {"text": "a"}}).json
    several = client.post("/invocations", json={"modelname": ["resnet", "slow"], "payload": ONE})
    for name in ("resnet", "slow"):
        key = f"all/answers/{name}/latest/pictures/images/red.png.json"
        one = several.json["results"][name]
        assert one["output"] == place(key)
        assert read(pictures, key) == {"modelname": name, "result": one["result"]}


def test_each_payload_of_a_list_has_an_object_of_its_own(
    client: FlaskClient, pictures: S3Server
) -> None:
    body = {"modelname": "colour", "payload": [ONE, TWO], "output": {}}
    answer = client.post("/invocations", json=body).json
    for result, stored in zip(answer["result"], answer["output"], strict=True):
        assert read(pictures, stored["s3_key"]) == {"modelname": "colour", "result": result}
    body["output"] = {"s3_key": "results/both.json"}
    answer = client.post("/invocations", json=body).json
    assert read(pictures, "results/both.json")["result"] == answer["result"]


RED_ELSEWHERE = {"s3_uri": f"s3://{OTHER_BUCKET}/images/red.png"}
TOP_1 = {"top_k": 1}
ELSEWHERE = f"s3://{OTHER_BUCKET}/results/a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({**ONE}, RED_ELSEWHERE),
        ({**ONE, "modelversion": 1}, {**ONE, "modelversion": "2"}),
        ({**ONE}, {**ONE, "modelversion": 1}),
        ({**ONE, "parameters": TOP_1}, {**ONE, "parameters": {"top_k": 2}}),
        ({**ONE, "parameters": TOP_1}, {"payload": {**ONE, "top_k": 1}}),
        ({**ONE, "modelname": "a_b"}, {"s3_key": "b/images/red.png", "modelname": "a"}),
        ({"s3_key": "x", "modelname": "a_b"}, {"s3_key": "x_a", "modelname": "b"}),
        ({"s3_key": "latest/pictures/x", "modelname": "a"}, {"s3_key": "x", "modelname": "a"}),
        ({"s3_key": "x"}, {"s3_key": "x.json"}),
        ({"s3_key": "x"}, {"s3_key": "/x"}),
        ({"s3_key": "x?y"}, {"s3_key": "x%3Fy"}),
    ],
)
def test_no_two_questions_have_one_place(one: dict[str, Any], other: dict[str, Any]) -> None:
    places = f"{BUCKET},{OTHER_BUCKET}"
    settings = read_settings({"S3_BUCKET_NAME": BUCKET, "S3_ALLOWED_INPUTS": places})
    step = Step(settings, LargeBodies(0))

    def place(body: dict[str, Any], **texts: str) -> str:
        document = json.dumps({"modelname": "colour", **body, "output": {}}).encode()
        asked = read_json(document, Metadata())
        read = step.resolve(asked, step.reads(cast("Any", None)), texts)
        assert isinstance(read, ModelRequest)
        assert isinstance(read.output, Output)
        return str(read.output.locations[0])

    assert place(one) != place(other)
    assert place(one, top_k="3") != place(one)
    assert place(one) == place(one)


X = {"inputs": [{"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


@pytest.mark.parametrize(
    "tensors", [{"modelname": "echo", **X}, {"modelname": "echo", "payload": X}]
)
@pytest.mark.parametrize("form", ["body", "list", "lines"])
def test_an_answer_of_tensors_is_stored_too(
    client: FlaskClient, pictures: S3Server, tensors: dict[str, Any], form: str
) -> None:
    key = f"results/{form}-{len(tensors)}.json"

    def ask(output: Any) -> Any:
        text = json.dumps({**tensors, "output": output})
        if form == "list":
            text = f'{{"requests": [{text}]}}'
        kind = "application/jsonlines" if form == "lines" else "application/json"
        answer = json.loads(client.post("/invocations", data=text, content_type=kind).data)
        return answer["results"][0] if form == "list" else answer

    answer = ask({"s3_key": key})
    assert answer.pop("output") == place(key)
    answer.pop("status", None)
    assert read(pictures, key) == answer
    assert answer.get("result", answer)["outputs"][0]["data"] == [1, 2]
    codes = [ask(wrong)["error"]["code"] for wrong in (5, {}, {"s3_key": "x"})]
    assert codes == ["bad_body", "bad_payload", "object_forbidden"]


def test_an_output_among_tensors_is_refused(client: FlaskClient) -> None:
    body = {**X, "output": {"s3_key": "results/a"}}
    words = (400, "bad_payload", "beside `inputs` or `payload`")
    assert_error(client.post("/infer/echo", json={"payload": body}), *words)
    response = client.post("/v2/models/echo/infer", json=body)
    assert (response.status_code, "`output` is among" in response.text) == (400, True)
    kind = "application/vnd.sagemaker-triton.binary+json"
    response = client.post("/infer/echo", data=json.dumps(body), content_type=kind)
    assert_error(response, *words)


def test_each_line_has_its_own_output(client: FlaskClient, pictures: S3Server) -> None:
    lines = [{"modelname": "colour", **one, "output": {}} for one in (ONE, {"s3_key": "x"}, TWO)]
    body = "\n".join(map(json.dumps, lines))
    response = client.post("/invocations", data=body, content_type="application/jsonlines")
    came = [json.loads(line) for line in response.text.splitlines()]
    assert [one["status"] for one in came] == [200, 404, 200]
    assert read(pictures, came[2]["output"]["s3_key"])["result"] == came[2]["result"]


@pytest.mark.parametrize(
    ("output", "status", "code", "word"),
    [
        ({"s3_key": "images/red.png"}, 403, "object_forbidden", "S3_ALLOWED_OUTPUTS"),
        ({"s3_key": "results/../images/red.png"}, 400, "bad_payload", ".."),
        ({"s3_uri": ELSEWHERE}, 403, "object_forbidden", "pictures/results/"),
        ({"s3_uri": "https://evil.example/a"}, 400, "bad_payload", "s3://BUCKET/KEY"),
        ({"key": "a"}, 400, "bad_payload", "s3_key"),
        ("results/a", 400, "bad_body", '"output": {"s3_key": "results/1.json"}'),
        (None, 400, "bad_body", "an object"),
    ],
)
def test_an_output_elsewhere_is_refused(
    client: FlaskClient, pictures: S3Server, output: Any, status: int, code: str, word: str
) -> None:
    before = pictures.read("images/red.png")
    response = client.post("/infer/colour", json={**ONE, "output": output})
    assert_error(response, status, code, word)
    assert pictures.read("images/red.png") == before


def test_outputs_may_be_allowed_elsewhere(make: MakeClient, pictures: S3Server) -> None:
    client = make(S3_ALLOWED_OUTPUTS=f"{OTHER_BUCKET}/jobs/")
    uri = f"s3://{OTHER_BUCKET}/jobs/1.json"
    assert client.post("/infer/colour", json={**ONE, "output": {"s3_uri": uri}}).status_code == 200
    assert read(pictures, "jobs/1.json", OTHER_BUCKET) == STORED
    response = client.post("/infer/colour", json={**ONE, "output": {}})
    words = ("results/colour/latest/pictures/images/red.png", "S3_ALLOWED_OUTPUTS")
    assert_error(response, 403, "object_forbidden", *words)
    client = make(S3_ALLOWED_OUTPUTS=f"{OTHER_BUCKET}/jobs/", S3_RESULTS_PREFIX="answers/")
    assert client.post("/infer/colour", json=ONE).json["output"]["s3_key"].startswith("answers/")


def test_what_cannot_be_stored_is_an_error(client: FlaskClient, make: MakeClient) -> None:
    """Nothing names it, several models share it, it is no document, or there is no bucket."""
    body: dict[str, Any] = {"payload": {"text": "abc"}, "output": {}}
    assert_error(client.post("/infer/letters", json=body), 400, "bad_payload", "s3_key")
    body["output"] = {"s3_key": "results/letters.json"}
    assert client.post("/infer/letters", json=body).status_code == 200
    body = {"modelname": ["colour", "slow"], "payload": ONE, "output": {"s3_key": "results/a"}}
    assert_error(client.post("/invocations", json=body), 400, "bad_payload", '"output": {}')
    body = {"modelname": "colour", "payload": [ONE, TWO], "output": {}}
    response = client.post("/invocations", json=body, headers={"Accept": "application/jsonlines"})
    assert_error(response, 400, "bad_request", "application/json")
    client = make(S3_ALLOWED_OUTPUTS="no-such-bucket")
    body = {**ONE, "output": {"s3_uri": "s3://no-such-bucket/a.json"}}
    response = client.post("/infer/colour", json=body)
    assert_error(response, 404, "object_not_found", "no bucket 'no-such-bucket'")
