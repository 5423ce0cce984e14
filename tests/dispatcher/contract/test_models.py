"""Which models are asked, one or several of them, their versions and their parameters."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.errors import ModelUnavailable
from clients.images.pictures import decode_picture
from clients.plugins.registry import Registry
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs.json_request import LARGE_BODY, large_body_lock, parse_object
from dispatcher.settings import WANTED, read_settings
from tests.conftest import PATIENCE_S
from tests.support.application import serve_built_in
from tests.support.asking import ADD, PNG, ask, tensor
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image, resnet, yolov5

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def test_a_model_that_did_not_load_is_not_unknown(
    server: FakeTriton, built_in: Registry, repository: Path
) -> None:
    """Nor is it served: once it is unloaded, and where only what is loaded counts, it is 404."""
    run_dir = repository / "run"
    (run_dir / WANTED).mkdir(parents=True)
    settings = replace(read_settings({}), run_dir=run_dir)
    client = serve_built_in(built_in, Environment(server, repository), settings)
    server.models_run["bad"] = ModelUnavailable("the model 'bad' is not ready: no TorchScript")
    server.signatures["bad"] = Signature(0, (TensorSpec("a", "FP32", (-1,)),))
    server.unloaded.add("bad")
    v2 = {"inputs": [{"name": "a", "shape": [1], "datatype": "FP32", "data": [1]}]}
    unknown = client.post("/infer/bad", json=v2)
    assert_error(unknown, 404, "unknown_model", "served models are")
    (run_dir / WANTED / "bad").touch()
    (run_dir / WANTED / "nowhere").touch()
    assert_error(client.post("/infer/bad", json=v2), 503, "model_unavailable", "no TorchScript")
    error = (client.post("/infer/other", json=v2).json or {})["error"]
    assert "bad" not in error["message"] + error["hint"]  # which a request's id may have in it
    assert client.post("/models/bad/invoke", json=v2).status_code == 404
    assert client.post("/infer/nowhere", json=v2).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "attributes", "target", "expected"),
    [
        ("/infer/resnet?modelname=e", "yolov5", "modelname=c", "d", "resnet"),
        ("/models/resnet/invoke", "yolov5", "modelname=c", "d", "resnet"),
        ("/invocations?modelname=e", "resnet", "modelname=c", "d", "resnet"),
        ("/invocations?modelname=e", None, "modelname=resnet", "d", "resnet"),
        ("/invocations?modelname=e", None, "model_name=resnet", "d", "resnet"),
        ("/invocations?modelname=e", None, "", "resnet", "resnet"),
        ("/invocations?modelname=e", None, "", "resnet.tar.gz", "resnet"),
        ("/invocations?modelname=resnet", None, "", "", "resnet"),
    ],
)
def test_one_precedence_for_every_route(
    client: FlaskClient, path: str, body: str | None, attributes: str, target: str, expected: str
) -> None:
    document: dict[str, Any] = {"payload": {"img": image(Red)}}
    if body:
        document["modelname"] = body
    headers = {ATTRIBUTES: attributes, "X-Amzn-SageMaker-Target-Model": target}
    response = client.post(path, json=document, headers=headers)
    assert (response.json or {})["modelname"] == expected


def test_a_plus_in_a_query_and_a_model_that_is_not_loaded_have_hints_of_their_own(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.models_run["a+b"] = lambda inputs: {"SUM": sum(inputs.values())}  # type: ignore[dict-item]
    server.signatures["a+b"] = ADD
    body = {"inputs": [tensor()]}
    answer = ask(client, "/invocations?modelname=a+b", **body)
    assert_error(answer, 404, "unknown_model", "there is no model 'a b'")
    hint = (answer.json or {})["error"]["hint"]
    assert hint == """in a query "+" is read as a blank: write 'a%2Bb'"""
    assert ask(client, "/invocations?modelname=a%2Bb", **body).status_code == 200

    server.models_run["boom"] = dict
    server.unloaded.add("boom")
    answer = ask(client, modelname="boom", payload={})
    assert_error(answer, 404, "unknown_model", "the model 'boom' is not loaded")
    hint = (answer.json or {})["error"]["hint"]
    assert hint.startswith("POST /load_model/boom loads it, or says why that fails; the served")
    assert "boom" not in hint.partition("the served models are")[2]


def test_the_default_model_comes_last(
    server: FakeTriton, built_in: Registry, repository: Path
) -> None:
    settings = read_settings({"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert_base"})
    client = serve_built_in(built_in, Environment(server, repository), settings)
    response = ask(client, payload={"text": "[MASK]"})
    assert (response.json or {})["modelname"] == "bert_base"
    img = {"img": image(Red)}
    named = client.post("/invocations?modelname=resnet", json={"payload": img})
    assert (named.json or {})["modelname"] == "resnet"


@pytest.mark.parametrize("separator", [";", ",", "; ", " , "])
def test_parameters_and_version_come_from_the_attributes(
    client: FlaskClient, server: FakeTriton, separator: str
) -> None:
    attributes = separator.join(["modelname=resnet", "modelversion=1", "top_k=1", "trace=abc"])
    headers = {ATTRIBUTES: attributes, "Content-Type": "image/png"}
    response = client.post("/invocations", data=PNG, headers=headers)
    result = ["1.000000:7:cock"]
    assert response.json == {"modelname": "resnet", "result": result, "modelversion": "1"}
    assert server.calls[-1]["version"] == "1"


def test_parameters_of_the_body_come_before_attributes_before_the_query(
    client: FlaskClient,
) -> None:
    def count(body: Any, attributes: str) -> int:
        document = {"payload": {"img": image(Red)}, "parameters": body}
        path, headers = "/invocations?modelname=resnet&top_k=4", {ATTRIBUTES: attributes}
        response = client.post(path, json=document, headers=headers)
        return len((response.json or {})["result"])

    assert count({"top_k": 2}, "top_k=3") == 2
    assert count({}, "top_k=3") == 3
    assert count({}, "") == 4


NO_WHOLE_NUMBERS = (
    "x", "1.5", "1,5", "1,000", "1 5", "1;5", "1;x", "0x10", "1_0", "\u0661", "1e400", "1e0", "1.0",
    "", " 1", "1=2", "1abc", "inf", "9" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("text", NO_WHOLE_NUMBERS)
def test_a_parameter_that_is_no_number_as_a_whole_is_refused(
    client: FlaskClient, server: FakeTriton, text: str
) -> None:
    query = {"top_k": text}
    response = client.post("/infer/resnet", data=PNG, content_type="image/png", query_string=query)
    assert_error(response, 400, "bad_parameter", "`parameters.top_k` is ", "whole number from 1")
    if text.isascii() and text == text.strip() and len(text) < 100:
        header = {ATTRIBUTES: f"trace=a,b;top_k={text};format=objects"}
        response = client.post("/infer/resnet", data=PNG, content_type="image/png", headers=header)
        assert_error(response, 400, "bad_parameter", f"`parameters.top_k` is {text!r}")
    assert server.calls == []


@pytest.mark.parametrize(
    ("attributes", "status", "words"),
    [
        ("confidence=0,75", 400, "`parameters.confidence` is '0,75'"),
        ("confidence=0.75,", 200, "result"),
        ("confidence=0, 75 ;iou=0.5", 400, "`parameters.confidence` is '0,75'"),
        ("confidence=0.1;0.9", 400, "`parameters.confidence` is '0.1;0.9'"),
        ("confidence=0.1;confidence=0.9", 400, "`parameters.confidence` is '0.1,0.9'"),
        ("confidence=1e400", 400, "`parameters.confidence` is '1e400'"),
        ("confidence=7e-1;format=objects", 200, "label"),
        ("format=xml", 400, "expected one of compact, objects"),
        ("timeout_ms=9,000", 400, "`timeout_ms` is '9,000'"),
        ("modelversion=1,5", 400, "`modelversion` is '1,5'"),
        ("c000b4f9-df62;confidence=0.7", 200, "result"),  # an id, as the platform's docs have it
        ("c000b4f9,df62", 200, "result"),
        ("trace=a,b;confidence=0.7", 200, "result"),
    ],
)
def test_no_part_of_the_attributes_is_dropped(
    client: FlaskClient, attributes: str, status: int, words: str
) -> None:
    headers = {ATTRIBUTES: attributes, "Content-Type": "image/png"}
    response = client.post("/infer/yolov5", data=PNG, headers=headers)
    assert response.status_code == status, response.text
    assert words in response.text


def test_headers_name_one_model_and_have_the_platform_s_limit(client: FlaskClient) -> None:
    for attributes in ("modelname=resnet,yolov5", "modelname=resnet;model_name=yolov5"):
        headers = {ATTRIBUTES: attributes}
        response = client.post("/invocations", json={"payload": {}}, headers=headers)
        assert_error(response, 404, "unknown_model", "'resnet,yolov5'")
    response = client.post("/invocations?modelname=resnet&modelname=yolov5", json={"payload": {}})
    assert_error(response, 404, "unknown_model", "'resnet,yolov5'")
    headers = {ATTRIBUTES: "a" * 1025}
    response = client.post("/infer/resnet", json={"payload": {}}, headers=headers)
    assert_error(response, 400, "bad_header", "1024")


@pytest.mark.parametrize("spelt", ["two", "1abc", "1e5", "1.0", "+1", " 1", "0", "-1", "9" * 30])
@pytest.mark.parametrize("tensors", [False, True])
def test_a_version_is_checked_wherever_it_comes_from(
    client: FlaskClient, server: FakeTriton, spelt: str, tensors: bool
) -> None:
    body: dict[str, object] = {"payload": {"img": image(Red)}}
    if tensors:
        body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    query = {"modelname": "resnet", "modelversion": spelt}
    response = client.post("/invocations", json=body, query_string=query)
    assert_error(response, 400, "bad_body", "`modelversion` is ")
    assert server.calls == []


TWO = {"modelname": ["resnet", "yolov5"]}


def test_several_models_about_one_payload_decoded_once(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Mock(side_effect=decode_picture)
    monkeypatch.setattr("clients.base.decode_picture", decode)
    names, payload = ["resnet", "yolov5", "nosuch"], {"img": image(Red, (100, 50))}
    response = ask(client, modelname=names, payload=payload, parameters={"top_k": 1})
    assert response.status_code == 200
    results = (response.json or {})["results"]
    assert list(results) == names
    assert results["resnet"] == {"status": 200, "result": ["1.000000:7:cock"]}
    assert results["yolov5"]["result"][0][0] == 2
    assert results["nosuch"]["status"] == 404
    assert results["nosuch"]["error"]["code"] == "unknown_model"
    assert results["nosuch"]["error"]["modelname"] == "nosuch"
    assert decode.call_count == 1


def test_several_models_run_at_the_same_time(client: FlaskClient, server: FakeTriton) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)  # breaks unless both are inside together

    def waiting(run: Any) -> Any:
        def run_together(inputs: Any) -> Any:
            both.wait()
            return run(inputs)

        return run_together

    server.models_run |= {"resnet": waiting(resnet), "yolov5": waiting(yolov5)}
    response = ask(client, modelname=["resnet", "yolov5"], payload={"img": image(Red)})
    assert [one["status"] for one in (response.json or {})["results"].values()] == [200, 200]


def test_a_mixed_list_is_answered_in_order_each_with_its_status(client: FlaskClient) -> None:
    response = ask(
        client,
        requests=[
            {"modelname": "bert_base", "payload": {"text": "[MASK]"}, "parameters": {"top_k": 1}},
            {"modelname": "resnet"},
            {"modelname": "nosuch", "payload": {}},
            {"modelname": "add", "inputs": [tensor()]},
        ],
    )
    results = (response.json or {})["results"]
    assert [one["status"] for one in results] == [200, 400, 404, 200]
    assert results[0]["result"] == [{"token": "many", "score": 0.5}]
    assert "`payload` is missing" in results[1]["error"]["message"]
    assert results[3]["outputs"][0]["data"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"requests": []}, ["list of 0"]),
        ({"requests": {}}, ["`requests`"]),
        ({"requests": [], "modelname": "x"}, ["beside `requests`"]),
        ({"modelname": [], "payload": {}}, ["`modelname` is a list of 0"]),
        ({"modelname": ["resnet", 5], "payload": {}}, ["`modelname[1]` is 5"]),
        ({"modelname": ["resnet", "resnet"], "payload": {}}, ["twice"]),
        ({**TWO, "payload": {}, "parameters": {"tokp": 3}}, ["'tokp'", "none of the models"]),
        (
            {"modelname": ["resnet", "bert_base", "nosuch"], "payload": {"img": "", "top_k": 3}},
            ["'top_k'", "none of the models", "img, inputs"],
        ),
    ],
)
def test_several_that_cannot_be_read(client: FlaskClient, body: Any, words: list[str]) -> None:
    response = client.post("/invocations", json=body)
    assert response.status_code == 400
    for word in words:
        assert word in response.text


def test_one_large_body_of_json_is_read_at_a_time_and_small_ones_beside_it() -> None:
    """Python's parser keeps its lock to itself: several in a row leave nobody else a word."""
    large = json.dumps({"text": "a" * LARGE_BODY}).encode()
    came = []
    with large_body_lock:
        other = threading.Thread(target=lambda: came.append(parse_object(large)))
        other.start()
        assert parse_object(b'{"text": "a"}') == {"text": "a"}
        other.join(0.2)
        assert not came
    other.join(PATIENCE_S)
    assert came == [{"text": "a" * LARGE_BODY}]


def test_a_large_body_waits_for_others_until_its_deadline(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.codecs.json_request.LARGE_BODY", 10)
    large = {"modelname": "bert_base", "payload": {"text": "a [MASK]"}}
    with large_body_lock:
        response = ask(client, "/invocations?timeout_ms=200", **large)
        path, line = "/invocations?timeout_ms=200", json.dumps(large)
        lines = client.post(path, data=line, content_type="application/jsonlines")
    assert_error(response, 504, "deadline_exceeded", "other large bodies")
    assert json.loads(lines.text)["error"]["code"] == "deadline_exceeded"
    assert ask(client, **large).status_code == 200, "nobody holds it any more"


def test_the_ready_made_models_answer(client: FlaskClient) -> None:
    """ResNet as Triton writes classes, best first; BERT fills each mask by itself."""
    response = ask(client, modelname="resnet", payload={"img": image([255, 102, 51])})
    best = ["1.000000:7:cock", "0.400000:3:tiger shark, Galeocerdo cuvieri"]
    best.append("0.200000:5:electric ray, crampfish, numbfish, torpedo")
    assert response.json == {"modelname": "resnet", "result": best}
    sure, one = {"confidence": 0.8}, {"top_k": 1}
    response = ask(client, modelname="yolov5", payload={"img": image(Red)}, parameters=sure)
    assert (response.json or {})["result"] == []
    masks = {"text": "[MASK] of the [MASK]."}
    response = ask(client, modelname="bert_base", payload=masks, parameters=one)
    assert (response.json or {})["result"] == [
        [{"token": "many of the [MASK].", "score": 0.5}],
        [{"token": "[MASK] of the many.", "score": 0.5}],
    ]


def test_a_list_is_run_one_by_one_where_there_are_no_batches_or_rows_may_change_each_other(
    client: FlaskClient, server: FakeTriton
) -> None:
    """yolov5 has no `dynamic_batching`, by which its author says that they do not."""
    ask(client, modelname="yolov5", payload=[{"img": image(Red)}] * 3)
    assert [len(call["inputs"]["images"]) for call in server.calls] == [1, 1, 1]
    response = ask(client, modelname="double", payload=[{"numbers": [1, 2]}, {"numbers": [3]}])
    assert (response.json or {})["result"] == [[2, 4], [6]]


def test_sentences_of_different_length_share_a_batch(
    client: FlaskClient, server: FakeTriton
) -> None:
    texts = ["A [MASK].", "A much longer [MASK] than the first, with a [MASK]."]
    response = ask(client, modelname="bert_base", payload=[{"text": text} for text in texts])
    short, long = (response.json or {})["result"]
    assert short[0]["token"] == "A many."
    assert [len(mask) for mask in long] == [5, 5]
    (call,) = server.calls
    attention = call["inputs"]["attention_mask"]
    assert attention.dtype == np.int64
    assert attention.sum(1).tolist() == [5, 14]  # what pads the first is not looked at
