"""Answers that are stored in S3."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from flask.testing import FlaskClient

from dispatcher.codecs.content_types import LargeBodies
from dispatcher.codecs.json_request import read_json
from dispatcher.codecs.metadata import Metadata
from dispatcher.model_request import ModelRequest
from dispatcher.s3.step import Output, Step
from dispatcher.settings import read_settings
from tests.dispatcher.s3.conftest import MakeClient
from tests.support.s3 import BUCKET, OTHER_BUCKET, S3Server
from tests.support.stand_ins import assert_error

RED, LIME = {"s3_key": "images/red.png"}, {"s3_key": "images/lime.png"}
RESULT = {"pixel": [255, 0, 0], "others": []}
STORED = {"modelname": "colour", "result": RESULT}


def read(s3: S3Server, key: str, bucket: str = BUCKET) -> Any:
    content, content_type = s3.read(key, bucket)
    assert content_type == "application/json"
    return json.loads(content)


def place(key: str, bucket: str = BUCKET) -> dict[str, str]:
    return {"s3_key": key, "s3_uri": f"s3://{bucket}/{key}"}


def test_an_answer_is_stored_where_the_request_says(
    client: FlaskClient, pictures: S3Server
) -> None:
    body = {**RED, "output": {"s3_key": "results/one.json"}}
    answer = client.post("/infer/colour", json=body).json
    assert answer == {**STORED, "output": place("results/one.json")}
    assert read(pictures, "results/one.json") == STORED


def test_the_default_name_has_the_key_and_the_model(
    client: FlaskClient, pictures: S3Server
) -> None:
    answer = client.post("/infer/colour", json={**RED, "output": {}}).json
    name = "results/colour/latest/pictures/images/red.png.json"
    assert answer == {**STORED, "output": place(name)}
    assert read(pictures, name) == STORED


def test_the_prefix_of_the_settings_stores_every_answer_by_key(
    make: MakeClient, pictures: S3Server
) -> None:
    client = make(S3_RESULTS_PREFIX="all/answers")
    assert "output" in client.post("/infer/colour", json=RED).json
    assert read(pictures, "all/answers/colour/latest/pictures/images/red.png.json") == STORED
    assert "output" not in client.post("/infer/letters", json={"payload": {"text": "a"}}).json
    several = client.post("/invocations", json={"modelname": ["resnet", "slow"], "payload": RED})
    for name in ("resnet", "slow"):
        key = f"all/answers/{name}/latest/pictures/images/red.png.json"
        one = several.json["results"][name]
        assert one["output"] == place(key)
        assert read(pictures, key) == {"modelname": name, "result": one["result"]}


def test_each_payload_of_a_list_has_an_object_of_its_own(
    client: FlaskClient, pictures: S3Server
) -> None:
    body = {"modelname": "colour", "payload": [RED, LIME], "output": {}}
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
        ({**RED}, RED_ELSEWHERE),
        ({**RED, "modelversion": 1}, {**RED, "modelversion": "2"}),
        ({**RED}, {**RED, "modelversion": 1}),
        ({**RED, "parameters": TOP_1}, {**RED, "parameters": {"top_k": 2}}),
        ({**RED, "parameters": TOP_1}, {"payload": {**RED, "top_k": 1}}),
        ({**RED, "modelname": "a_b"}, {"s3_key": "b/images/red.png", "modelname": "a"}),
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
    lines = [{"modelname": "colour", **one, "output": {}} for one in (RED, {"s3_key": "x"}, LIME)]
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
    response = client.post("/infer/colour", json={**RED, "output": output})
    assert_error(response, status, code, word)
    assert pictures.read("images/red.png") == before


def test_outputs_may_be_allowed_elsewhere(make: MakeClient, pictures: S3Server) -> None:
    client = make(S3_ALLOWED_OUTPUTS=f"{OTHER_BUCKET}/jobs/")
    uri = f"s3://{OTHER_BUCKET}/jobs/1.json"
    assert client.post("/infer/colour", json={**RED, "output": {"s3_uri": uri}}).status_code == 200
    assert read(pictures, "jobs/1.json", OTHER_BUCKET) == STORED
    response = client.post("/infer/colour", json={**RED, "output": {}})
    words = ("results/colour/latest/pictures/images/red.png", "S3_ALLOWED_OUTPUTS")
    assert_error(response, 403, "object_forbidden", *words)
    client = make(S3_ALLOWED_OUTPUTS=f"{OTHER_BUCKET}/jobs/", S3_RESULTS_PREFIX="answers/")
    assert client.post("/infer/colour", json=RED).json["output"]["s3_key"].startswith("answers/")


def test_what_cannot_be_stored_is_an_error(client: FlaskClient, make: MakeClient) -> None:
    """Nothing names it, several models share it, it is no document, or there is no bucket."""
    body: dict[str, Any] = {"payload": {"text": "abc"}, "output": {}}
    assert_error(client.post("/infer/letters", json=body), 400, "bad_payload", "s3_key")
    body["output"] = {"s3_key": "results/letters.json"}
    assert client.post("/infer/letters", json=body).status_code == 200
    body = {"modelname": ["colour", "slow"], "payload": RED, "output": {"s3_key": "results/a"}}
    assert_error(client.post("/invocations", json=body), 400, "bad_payload", '"output": {}')
    body = {"modelname": "colour", "payload": [RED, LIME], "output": {}}
    response = client.post("/invocations", json=body, headers={"Accept": "application/jsonlines"})
    assert_error(response, 400, "bad_request", "application/json")
    client = make(S3_ALLOWED_OUTPUTS="no-such-bucket")
    body = {**RED, "output": {"s3_uri": "s3://no-such-bucket/a.json"}}
    response = client.post("/infer/colour", json=body)
    assert_error(response, 404, "object_not_found", "no bucket 'no-such-bucket'")
