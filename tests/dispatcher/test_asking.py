"""Every way to ask: the HTTP contract, with a Triton that is a dictionary."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from clients.base import Client, Environment
from clients.errors import DeadlineExceeded, ModelUnavailable
from clients.images.pictures import FORMATS
from clients.plugins.registry import Registry
from clients.request import Media, Once, Request
from clients.tensors.client import converted
from clients.triton.client import renamed_config
from clients.triton.server import Signature, TensorSpec
from dispatcher.app import create_app
from dispatcher.codecs.content_types import BEGINS_AS_PICTURE, told
from dispatcher.execution.admission import LARGE
from dispatcher.execution.request import one_is_read, parsed
from dispatcher.settings import WANTED, read_settings
from tests.dispatcher.test_http import (
    Red,
    assert_error,
    bert,
    built_in,
    image,
    quiet,
    resnet,
    yolov5,
)
from tests.support.fake_triton import FakeTriton

__all__ = ["built_in"]

RED = image(Red, (100, 50))
PNG = base64.b64decode(RED)
ADD = Signature(
    8,
    (TensorSpec("A", "FP32", (-1, 3)), TensorSpec("B", "FP32", (-1, 3), optional=True)),
    (TensorSpec("SUM", "FP32", (-1, 3)),),
)
WORDS = Signature(0, (TensorSpec("IN", "BYTES", (-1,)),), (TensorSpec("OUT", "BYTES", (-1,)),))


class Noted(Client):
    modelname = "noted"
    example = {"x": 1}

    def inference(self, payload: Any) -> Any:
        self.request.response_attributes["seen"] = self.request.attributes.get("trace", "nothing")
        self.request.response_attributes["evil"] = "a\r\nSet-Cookie: b"
        return [float("nan"), float("inf"), 1.5]


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton(
        {
            "resnet": resnet,
            "yolov5": yolov5,
            "bert_base": bert,
            "noted": dict,
            "add": lambda inputs: {"SUM": sum(inputs.values())},  # type: ignore[dict-item]
            "words": lambda inputs: {"OUT": inputs["IN"]},  # type: ignore[dict-item]
        },
        signatures={"add": ADD, "words": WORDS},
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty one: what is loaded at run time goes here."""
    return tmp_path


@pytest.fixture
def client(server: FakeTriton, built_in: Registry, repository: Path) -> FlaskClient:
    environment = Environment(server, repository)
    for one in built_in.clients.values():
        one._environment = environment
    registry = Registry({**built_in.clients, "noted": Noted(environment)})
    settings = read_settings(
        {
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert_base",
            "REQUIRED_MODELS": "resnet",
            "MODEL_SERVER_MAX_BODY_MB": "1",
        }
    )
    readiness = quiet(server, *settings.required_models)
    return create_app(settings, registry, environment, renamed_config, readiness).test_client()


def ask(client: FlaskClient, path: str = "/invocations", **body: Any) -> TestResponse:
    return client.post(path, json=body)


# Which model


def test_a_model_that_did_not_load_is_not_unknown(
    server: FakeTriton, built_in: Registry, repository: Path
) -> None:
    """Nor is it served: once it is unloaded, and where only what is loaded counts, it is 404."""
    run_dir = repository / "run"
    (run_dir / WANTED).mkdir(parents=True)
    settings = replace(read_settings({}), run_dir=run_dir)
    environment = Environment(server, repository)
    client = create_app(
        settings, built_in, environment, renamed_config, quiet(server)
    ).test_client()
    server.models_run["bad"] = ModelUnavailable("the model 'bad' is not ready: no TorchScript")
    server.signatures["bad"] = Signature(0, (TensorSpec("a", "FP32", (-1,)),))
    server.unloaded.add("bad")
    v2 = {"inputs": [{"name": "a", "shape": [1], "datatype": "FP32", "data": [1]}]}
    unknown = client.post("/infer/bad", json=v2)
    assert_error(unknown, 404, "unknown_model", "served are")
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
    headers = {
        "X-Amzn-SageMaker-Custom-Attributes": attributes,
        "X-Amzn-SageMaker-Target-Model": target,
    }
    response = client.post(path, json=document, headers=headers)
    assert (response.json or {})["modelname"] == expected


def test_a_plus_in_a_query_is_a_blank_and_the_hint_says_how_it_is_written(
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


def test_the_default_model_comes_last(client: FlaskClient) -> None:
    response = ask(client, payload={"text": "[MASK]"})
    assert (response.json or {})["modelname"] == "bert_base"


# Parameters


@pytest.mark.parametrize("separator", [";", ",", "; ", " , "])
def test_parameters_and_version_come_from_the_attributes(
    client: FlaskClient, server: FakeTriton, separator: str
) -> None:
    header = separator.join(["modelname=resnet", "modelversion=1", "top_k=1", "trace=abc"])
    response = client.post(
        "/invocations",
        data=PNG,
        content_type="image/png",
        headers={"X-Amzn-SageMaker-Custom-Attributes": header},
    )
    assert response.json == {
        "modelname": "resnet",
        "result": ["1.000000:7:cock"],
        "modelversion": "1",
    }
    assert server.calls[-1]["version"] == "1"


def test_parameters_of_the_body_come_before_attributes_before_the_query(
    client: FlaskClient,
) -> None:
    def count(body: Any, attributes: str) -> int:
        response = client.post(
            "/invocations?modelname=resnet&top_k=4",
            json={"payload": {"img": image(Red)}, "parameters": body},
            headers={"X-Amzn-SageMaker-Custom-Attributes": attributes},
        )
        return len((response.json or {})["result"])

    assert count({"top_k": 2}, "top_k=3") == 2
    assert count({}, "top_k=3") == 3
    assert count({}, "") == 4


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("top_k=x", ["`parameters.top_k` is 'x'", "whole number"]),
        ("top_k=1.5", ["'1.5'"]),
        ("top_k=1_0", ["'1_0'"]),
        ("format=xml", ["'xml'", "compact, objects"]),
        ("modelversion=two", ["`modelversion` is 'two'"]),
    ],
)
def test_texts_are_checked_like_values(client: FlaskClient, query: str, words: list[str]) -> None:
    response = client.post(f"/infer/resnet?{query}", data=PNG, content_type="image/png")
    assert response.status_code == 400
    for word in words:
        assert word in response.text


NO_WHOLE_NUMBERS = (
    "1,5", "1,000", "1 5", "1;5", "1;x", "0x10", "1_0", "\u0661", "1e400", "1e0", "1.0", "", " 1",
    "1=2", "1abc", "inf", "9" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("text", NO_WHOLE_NUMBERS)
def test_a_parameter_that_is_no_number_as_a_whole_is_refused(
    client: FlaskClient, server: FakeTriton, text: str
) -> None:
    query = {"top_k": text}
    response = client.post("/infer/resnet", data=PNG, content_type="image/png", query_string=query)
    assert_error(response, 400, "bad_parameter", "`parameters.top_k` is ", "whole number from 1")
    if text.isascii() and text == text.strip() and len(text) < 100:
        header = {"X-Amzn-SageMaker-Custom-Attributes": f"trace=a,b;top_k={text};format=objects"}
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
    response = client.post(
        "/infer/yolov5",
        data=PNG,
        content_type="image/png",
        headers={"X-Amzn-SageMaker-Custom-Attributes": attributes},
    )
    assert response.status_code == status, response.text
    assert words in response.text


def test_two_models_in_headers_are_not_one(client: FlaskClient) -> None:
    for attributes in ("modelname=resnet,yolov5", "modelname=resnet;model_name=yolov5"):
        headers = {"X-Amzn-SageMaker-Custom-Attributes": attributes}
        response = client.post("/invocations", json={"payload": {}}, headers=headers)
        assert_error(response, 404, "unknown_model", "'resnet,yolov5'")
    response = client.post("/invocations?modelname=resnet&modelname=yolov5", json={"payload": {}})
    assert_error(response, 404, "unknown_model", "'resnet,yolov5'")


@pytest.mark.parametrize("spelt", ["1abc", "1e5", "1.0", "+1", " 1", "0", "-1", "9" * 30])
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


def test_attributes_beyond_the_platform_s_limit_are_refused(client: FlaskClient) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "a" * 1025}
    response = client.post("/infer/resnet", json={"payload": {}}, headers=headers)
    assert_error(response, 400, "bad_header", "1024")


# The table of content types


@pytest.mark.parametrize(
    "content_type",
    ["image/png", "image/whatever", "application/x-image", "application/octet-stream", "", None],
)
def test_a_picture_as_it_is(client: FlaskClient, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    response = client.post("/infer/yolov5", data=PNG, headers=headers)
    assert (response.json or {})["result"] == [[2, 0.75, 45.0, 55.0, 22.5, 27.5, 100, 50]]


def test_what_curl_sends_by_itself_is_sniffed(client: FlaskClient) -> None:
    form = "application/x-www-form-urlencoded"
    body = json.dumps({"modelname": "resnet", "payload": {"img": image(Red)}})
    assert client.post("/invocations", data=body, content_type=form).status_code == 200
    assert client.post("/infer/resnet", data=PNG, content_type=form).status_code == 200
    for coding in ("utf-8-sig", "utf-16", "utf-32"):
        marked = body.encode(coding)
        assert client.post("/invocations", data=marked, content_type=form).status_code == 200
    blank = " \r\n\t" * 20 + body
    assert client.post("/invocations", data=blank, content_type=form).status_code == 200


def test_a_form_without_a_boundary_is_told_so(client: FlaskClient) -> None:
    response = client.post("/infer/resnet", data=PNG, content_type="multipart/form-data")
    assert_error(response, 400, "bad_body", "boundary")


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig"])
def test_a_text_as_it_is(client: FlaskClient, coding: str) -> None:
    response = client.post(
        "/infer/bert_base?top_k=1", data="A [MASK] café.".encode(coding), content_type="text/plain"
    )
    assert (response.json or {})["result"] == [{"token": "A many café.", "score": 0.5}]


@pytest.mark.parametrize(
    ("charset", "coding"),
    [
        ("", "utf-8"),
        ("UTF-8", "utf-8-sig"),
        ('"utf8"', "utf-8"),
        ("us-ascii", "utf-8"),
        ("ANSI_X3.4-1968", "utf-8"),
        ("ISO-8859-1", "latin-1"),
        ("iso_8859-1", "latin-1"),
        ("latin1", "latin-1"),
        ("windows-1252", "cp1252"),
    ],
)
def test_a_text_is_read_in_the_charset_that_it_says(
    client: FlaskClient, charset: str, coding: str
) -> None:
    file, said = "A [MASK] café.".encode(coding), f"text/plain; charset={charset}"
    answer = client.post("/infer/bert_base?top_k=1", data=file, content_type=said).json or {}
    assert answer["result"] == [{"token": "A many café.", "score": 0.5}]
    form = client.post("/infer/bert_base?top_k=1", data={"t": (io.BytesIO(file), "t.txt", said)})
    assert (form.json or {})["result"] == [answer["result"]]


@pytest.mark.parametrize(
    "said",
    [
        "charset=latin1, utf-8",
        "charset=utf-8 latin1",
        "charset=latin1; charset=utf-8",
        "charset =latin1",
        "charset: latin1",
        "charset",
        "x=y charset=latin1",
        'charset="latin1',
    ],
)
def test_a_charset_that_cannot_be_read_is_refused(client: FlaskClient, said: str) -> None:
    file, said = b"A [MASK].", f"text/plain; {said}"
    raw = client.post("/infer/bert_base", data=file, content_type=said)
    form = client.post("/infer/bert_base", data={"t": (io.BytesIO(file), "t.txt", said)})
    for response in (raw, form):
        assert_error(response, 415, "unsupported_type", "charset", "text/plain; charset=utf-8")


@pytest.mark.parametrize("charset", ["utf-16", "shift_jis", "unicode_escape", "rot13", "x" * 999])
def test_a_text_in_another_charset_is_refused(client: FlaskClient, charset: str) -> None:
    file, said = "A [MASK]. ".encode("utf-16"), f"text/plain; charset={charset}"
    raw = client.post("/infer/bert_base", data=file, content_type=said)
    form = client.post("/infer/bert_base", data={"t": (io.BytesIO(file), "t.txt", said)})
    for response in (raw, form):
        assert_error(response, 415, "unsupported_type", f"charset '{charset[:50]}", "UTF-8")


def test_a_text_that_is_not_in_its_charset_is_told_so(client: FlaskClient) -> None:
    said = "text/plain; charset=windows-1252"
    response = client.post("/infer/bert_base", data=b"[MASK] \x81", content_type=said)
    assert_error(response, 400, "bad_body", "not WINDOWS-1252", "0x81", "UTF-8")
    response = client.post("/infer/bert_base", data=b"[MASK] \xe9", content_type="text/plain")
    assert_error(response, 400, "bad_body", "not UTF-8", "0xe9", "charset=iso-8859-1")


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n"])
def test_lines_of_a_text_are_not_taken_for_one_text(
    client: FlaskClient, server: FakeTriton, line_break: str
) -> None:
    """Three records of a batch transform job would be filled in with each other's words."""
    text = line_break.join(["a [MASK]", "b [MASK]", "c [MASK]", ""]).encode()
    response = client.post("/infer/bert_base", data=text, content_type="text/plain")
    words = ["several lines", "application/octet-stream", "application/jsonlines"]
    assert_error(response, 400, "bad_body", *words)
    assert server.calls == []

    lines = b"".join(b'{"payload": {"text": "%b"}}\n' % one for one in text.split())
    several = client.post("/infer/bert_base", data=lines, content_type="application/jsonlines")
    assert len(several.text.splitlines()) == 6
    one = client.post(
        "/infer/bert_base?top_k=1", data=text, content_type="application/octet-stream"
    )
    found = [mask[0]["token"] for mask in (one.json or {})["result"]]
    assert len(found) == 3
    form = client.post(
        "/infer/bert_base?top_k=1", data={"t": (io.BytesIO(text), "t.txt", "text/plain")}
    )
    assert (form.json or {})["result"] == [(one.json or {})["result"]]


@pytest.mark.parametrize("text", ["a [MASK]\n", "\r\n a [MASK] \r\n\r\n", "a [MASK]\u2028b"])
def test_a_text_of_one_line_may_have_empty_ones_around_it(client: FlaskClient, text: str) -> None:
    response = client.post(
        "/infer/bert_base?top_k=1", data=text.encode(), content_type="text/plain"
    )
    assert len((response.json or {})["result"]) == 1


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("between", ["\n", "\r\n", " ", ""])
def test_several_objects_are_no_json_and_the_way_to_send_them_is_named(
    client: FlaskClient, content_type: str, between: str
) -> None:
    one = json.dumps({"modelname": "bert_base", "payload": {"text": "a [MASK]"}})
    body = between.join([one, one])
    response = client.post("/invocations", data=body, content_type=content_type)
    words = ["not JSON", "send several requests as application/jsonlines", '{"requests": [']
    assert_error(response, 400, "bad_body", *words)
    response = client.post("/invocations", data=f"[{one}, {one}]", content_type=content_type)
    assert_error(response, 400, "bad_body", *words[1:])


@pytest.mark.parametrize(
    ("content_type", "words"),
    [
        ("text/csv", ["application/x-npy", "application/jsonlines"]),
        (
            "application/vnd.sagemaker-triton.binary+json;json-header-size=84",
            ["tensors in binary", "application/json", "binary_data=False", "application/x-npy"],
        ),
        ("application/pdf", ["application/octet-stream", "image/*"]),
    ],
)
def test_a_type_that_is_not_taken_says_what_to_send_instead(
    client: FlaskClient, content_type: str, words: list[str]
) -> None:
    response = client.post("/infer/add", data=b"1,2\n3,4\n", content_type=content_type)
    assert_error(response, 415, "unsupported_type", content_type.partition(";")[0], *words)


@pytest.mark.parametrize("said", ["", "; charset=iso-8859-1", "; charset=windows-1252"])
def test_a_byte_order_mark_is_none_of_the_text(client: FlaskClient, said: str) -> None:
    """EF BB BF is what Notepad writes (Unicode, 23.8); it is surer than what a program says."""
    text = b"\xef\xbb\xbfA [MASK] caf\xc3\xa9."
    raw = client.post("/infer/bert_base?top_k=1", data=text, content_type=f"text/plain{said}")
    assert (raw.json or {})["result"] == [{"token": "A many café.", "score": 0.5}]
    body = part('name="modelname"', "", b"\xef\xbb\xbfbert_base")
    body += part('name="parameters"', "application/json", b'\xef\xbb\xbf{"top_k": 1}')
    body += part('name="f"; filename="a.txt"', f"text/plain{said}", text) + b"--b--\r\n"
    form = client.post("/invocations", data=body, content_type="multipart/form-data; boundary=b")
    assert (form.json or {})["result"] == [[{"token": "A many café.", "score": 0.5}]]


def test_a_byte_order_mark_is_none_of_json_or_its_lines(client: FlaskClient) -> None:
    one = '{"modelname": "bert_base", "payload": {"text": "a [MASK]"}, "parameters": {"top_k": 1}}'
    marked = b"\xef\xbb\xbf" + one.encode() + b"\r\n"
    answer = client.post("/invocations", data=marked, content_type="application/json").json or {}
    assert answer["result"][0]["token"] == "a many"
    files = client.post("/invocations", data=marked * 2, content_type="application/jsonlines")
    assert [json.loads(line)["status"] for line in files.text.splitlines()] == [200, 200]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "text/plain; charset=iso-8859-1",
        "application/octet-stream",
        "multipart/form-data; boundary=b",
        "application/jsonlines",
        "application/x-ndjson",
    ],
)
def test_utf_16_is_not_read_as_something_else(
    client: FlaskClient, server: FakeTriton, coding: str, content_type: str
) -> None:
    lines = "jsonl" in content_type or "ndjson" in content_type
    one = '{"payload": {"text": "A [MASK] café."}}\n' * 2 if lines else "A [MASK] café."
    data = one.encode(coding)
    if content_type.startswith("multipart"):
        data = form_of(data, "text/plain")
    response = client.post("/infer/bert_base", data=data, content_type=content_type)
    assert_error(response, 400, "bad_body", "UTF-16", "send it in UTF-8")
    assert server.calls == []


def test_zeros_at_the_end_of_a_text_are_c_s(client: FlaskClient) -> None:
    response = client.post("/infer/bert_base", data=b"A [MASK].\0", content_type="text/plain")
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "data", "content_type", "code"),
    [
        ("/infer/bert_base", PNG, "image/png", "unsupported_media"),
        ("/infer/bert_base", PNG, "application/x-image", "unsupported_media"),
        ("/infer/resnet", b"hello", "text/plain", "unsupported_media"),
        ("/infer/noted", PNG, "image/png", "unsupported_media"),
        ("/infer/resnet", b"a,b", "text/csv", "unsupported_type"),
        ("/infer/resnet", PNG, "image/png, image/jpeg", "unsupported_type"),
        ("/infer/resnet", b"hello", "", "unsupported_type"),
    ],
)
def test_what_is_not_taken_is_415(
    client: FlaskClient, path: str, data: bytes, content_type: str, code: str
) -> None:
    response = client.post(path, data=data, headers={"Content-Type": content_type})
    assert_error(response, 415, code)


def test_a_form_is_a_batch_answered_in_order(client: FlaskClient, server: FakeTriton) -> None:
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]] * 2
    files = [
        (io.BytesIO(base64.b64decode(image(colour))), f"{place}.png")
        for place, colour in enumerate(colours)
    ]
    response = client.post(
        "/invocations",
        data={"files": files, "modelname": "resnet", "parameters": '{"top_k": 1}'},
        content_type="multipart/form-data",
    )
    best = [result[0].split(":")[1] for result in (response.json or {})["result"]]
    assert best == ["7", "3", "5"] * 2
    assert sorted(len(call["inputs"]["input"]) for call in server.calls) == [2, 4]


def test_files_of_a_form_are_answered_as_they_came_whatever_their_fields(
    client: FlaskClient,
) -> None:
    red, green = ([255, 0, 0], [0, 255, 0])
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="x.png"\r\n\r\n'
        f"{base64.b64decode(image(colour)).decode('latin-1')}\r\n"
        for name, colour in (("one", red), ("other", green), ("one", red))
    )
    response = client.post(
        "/infer/resnet",
        data=f"{parts}--b--\r\n".encode("latin-1"),
        content_type="multipart/form-data; boundary=b",
    )
    best = [result[0].split(":")[1] for result in (response.json or {})["result"]]
    assert best == ["7", "3", "7"]


def part(disposition: str, content_type: str, content: bytes) -> bytes:
    said = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"--b\r\nContent-Disposition: form-data; {disposition}\r\n{said}\r\n"
    return head.encode() + content + b"\r\n"


def form_of(content: bytes, content_type: str) -> bytes:
    return part('name="f"; filename="f.x"', content_type, content) + b"--b--\r\n"


@pytest.mark.parametrize("content_type", ["image/png", "application/octet-stream", "Image/PNG"])
@pytest.mark.parametrize("name", ["file", "image", "a b"])
def test_a_part_without_a_file_name_is_a_file_by_its_type(
    client: FlaskClient, content_type: str, name: str
) -> None:
    """RFC 7578, 4.2: the file name is recommended, not required."""
    body = part('name="modelname"', "text/plain; charset=utf-8", b"resnet")
    body += part('name="parameters"', "application/json", b'{"top_k": 1}')
    body += part(f'name="{name}"', content_type, PNG)
    body += part('name="f"; filename="f.png"', "", PNG) + b"--b--\r\n"
    response = client.post(
        "/invocations", data=body, content_type="multipart/form-data; boundary=b"
    )
    best = [result[0].split(":")[2] for result in (response.json or {})["result"]]
    assert best == ["cock", "cock"]


def test_a_large_part_without_a_file_name_is_a_file_too(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all fields 1 MiB is taken at most; here less, as the body may not have more itself."""
    monkeypatch.setattr("dispatcher.codecs.content_types.IN_MEMORY", 2**18)
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    assert len(out.getvalue()) > 2**18
    form = "multipart/form-data; boundary=b"
    body = part('name="file"', "image/png", out.getvalue()) + b"--b--\r\n"
    assert client.post("/infer/resnet", data=body, content_type=form).status_code == 200
    body = part('name="file"', "", out.getvalue()) + b"--b--\r\n"
    response = client.post("/infer/resnet", data=body, content_type=form)
    assert_error(response, 413, "too_large", "1 MiB", "send a file with a file name")


@pytest.mark.parametrize(
    ("content_type", "status", "code", "words"),
    [
        ("", 400, "bad_body", ["unknown field 'file'", "with a file name"]),
        ("text/plain", 400, "bad_body", ["unknown field 'file'", "with a file name"]),
        ("application/pdf", 415, "unsupported_type", ["'file' is of type application/pdf"]),
    ],
)
def test_a_part_without_a_file_name_that_is_none(
    client: FlaskClient, content_type: str, status: int, code: str, words: list[str]
) -> None:
    body = part('name="file"', content_type, b"hello") + b"--b--\r\n"
    response = client.post(
        "/infer/resnet", data=body, content_type="multipart/form-data; boundary=b"
    )
    assert_error(response, status, code, *words)


def as_curl_data(content: bytes, *, older: bool) -> bytes:
    """Return what `curl --data @file` sends: "carriage returns, newlines and null bytes" are not.

    So its manual says. Version 7.88 leaves out the rest of a line behind a null byte as well.
    """
    lines = content.replace(b"\r", b"").split(b"\n")
    return b"".join(one.split(b"\0")[0] if older else one.replace(b"\0", b"") for one in lines)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "application/octet-stream", "image/png", "image/x"],
)
def test_a_picture_that_lost_its_line_ends_is_to_be_sent_as_it_is(
    client: FlaskClient, server: FakeTriton, kind: str, content_type: str, older: bool
) -> None:
    out = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(out, kind)
    body = as_curl_data(out.getvalue(), older=older)
    response = client.post("/infer/resnet", data=body, content_type=content_type)
    assert response.status_code in {400, 415}, response.text
    assert "curl --data-binary" in response.text
    if kind == "PNG":  # as Windows and Git change line ends
        body = out.getvalue().replace(b"\r\n", b"\n")
        response = client.post("/infer/resnet", data=body, content_type=content_type)
        assert "curl --data-binary" in response.text
    assert server.calls == []
    right = client.post("/infer/resnet", data=out.getvalue(), content_type=content_type)
    assert right.status_code == 200


def test_a_text_about_bmw_was_no_picture(client: FlaskClient) -> None:
    for content_type in ("image/png", "application/x-www-form-urlencoded"):
        response = client.post(
            "/infer/resnet", data="BMW für alle".encode(), content_type=content_type
        )
        assert response.status_code in {400, 415}
        assert "curl" not in response.text


@pytest.mark.parametrize(
    "content",
    [base64.b64encode(PNG), b"<!DOCTYPE html><html></html>", PNG[: len(PNG) // 2]],
    ids=["base64", "a page", "cut off"],
)
def test_a_raw_picture_is_not_asked_for_in_base64(client: FlaskClient, content: bytes) -> None:
    """Alone and in a form; inside of JSON it is."""
    for arguments in (
        {"data": content, "content_type": "image/png"},
        {"data": {"file": (io.BytesIO(content), "a.png", "image/png")}},
    ):
        response = client.post("/infer/resnet", **arguments)  # type: ignore[arg-type]
        hint = "expected the bytes of a JPEG, PNG, WebP, BMP or GIF picture as they are; base64 is"
        assert_error(response, 400, "bad_payload", hint)
    payload = {"img": base64.b64encode(content).decode()}
    assert_error(
        ask(client, modelname="resnet", payload=payload), 400, "bad_payload", "expected base64 of"
    )


UNSAID = [
    ("resnet", PNG, 200, ["cock"]),
    ("bert_base", b"A [MASK].", 200, ["A many."]),
    ("bert_base", b"BMW has [MASK] cars.", 200, ["has many cars."]),
    ("bert_base", PNG, 415, ["unsupported_media", "a picture came", "takes a text"]),
    ("bert_base", b"[MASK] \xe9", 400, ["bad_body", "not UTF-8"]),
    ("resnet", b"A text.", 400, ["bad_payload", "not a picture", "7 bytes", "A text."]),
    ("noted", b"A text.", 415, ["unsupported_media", "a file came", "JSON alone"]),
    ("add", PNG, 415, ["unsupported_media", "a picture came", "takes tensors"]),
]


@pytest.mark.parametrize(("modelname", "content", "status", "words"), UNSAID)
def test_a_file_that_does_not_say_what_it_is_is_what_the_model_takes(
    client: FlaskClient, modelname: str, content: bytes, status: int, words: list[str]
) -> None:
    """So send text files in a form: requests, without a type; curl (t.md) and fetch, the other."""
    form, octets = "multipart/form-data; boundary=b", "application/octet-stream"
    for body, content_type in (
        (form_of(content, ""), form),
        (form_of(content, octets), form),
        (content, octets),
    ):
        response = client.post(f"/infer/{modelname}", data=body, content_type=content_type)
        assert response.status_code == status
        for word in words:
            assert word in response.text


def test_what_is_no_text_is_a_picture_where_a_model_takes_both() -> None:
    """Its class may know formats that are not known here, such as TIFF."""
    tiff, both = b"II*\0\x08\0\0\0\xff\xfe", ("picture", "text")
    assert told(Media("file", tiff), both) == Media("picture", tiff)
    assert told(Media("file", b"a text"), both) == Media("text", "a text")


def test_a_file_of_a_form_that_is_neither_picture_nor_text_is_told_so(client: FlaskClient) -> None:
    form = "multipart/form-data; boundary=b"
    body = form_of(b'{"text": "[MASK]"}', "application/json")
    for model in ("bert_base", "resnet"):
        response = client.post(f"/infer/{model}", data=body, content_type=form)
        words = ["'f.x' is of type application/json", "text/plain", "image/*"]
        assert_error(response, 415, "unsupported_type", *words)
    body = form_of(PNG, "binary/octet-stream")  # as S3 has it
    assert client.post("/infer/resnet", data=body, content_type=form).status_code == 200


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_picture_is_known_by_its_beginning(kind: str) -> None:
    for mode in ("1", "L", "RGB"):
        out = io.BytesIO()
        Image.new(mode, (3, 2)).convert("RGB" if kind == "WEBP" else mode).save(out, kind)
        assert BEGINS_AS_PICTURE.match(out.getvalue())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"modelname": "bert_base", "text": (io.BytesIO(b"\xff"), "a.txt", "text/plain")},
            ["UTF-8"],
        ),
        ({"modelname": "resnet"}, ["`files` is a list of 0"]),
        (
            {"modelname": "resnet", "files": (io.BytesIO(b"x"), "a"), "parameters": "{"},
            ["JSON", "`parameters` is '{'"],
        ),
        ({"modelname": "resnet", "top_k": "1"}, ["'top_k'", "parameters"]),
        ({"modelname": ["resnet", "yolov5"]}, ["`modelname` 2 times", "once"]),
        ({"modelname": "resnet", "parameters": ["{}"] * 3}, ["`parameters` 3 times"]),
        (
            {"modelname": "resnet", "parameters": (io.BytesIO(b"{}"), "blob", "application/json")},
            ["`parameters` came as a file", "without a file name"],
        ),
    ],
)
def test_a_form_that_cannot_be_read(client: FlaskClient, fields: Any, words: list[str]) -> None:
    response = client.post("/invocations", data=fields, content_type="multipart/form-data")
    assert_error(response, 400, "bad_body", *words)


# The library leaves what it has of a file to whoever forgets the error.
@pytest.mark.filterwarnings("ignore:Exception ignored.*SpooledTemporaryFile")
@pytest.mark.parametrize(
    "form",
    [
        b"junk",
        b"--other--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\n' + PNG,
    ],
    ids=["junk", "another boundary", "cut off"],
)
def test_a_form_that_cannot_be_read_is_not_an_empty_one(client: FlaskClient, form: bytes) -> None:
    response = client.post(
        "/infer/resnet", data=form, content_type="multipart/form-data; boundary=b"
    )
    assert_error(response, 400, "bad_body", "the form cannot be read", "boundary")


def test_a_caller_s_own_tensors_are_no_way_around_the_longest_text(
    client: FlaskClient, server: FakeTriton
) -> None:
    """bert_base takes 512 tokens; for 400,000 its process took 2 GB before it failed."""
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    server.signatures["bert_base"] = Signature(
        16,
        tuple(TensorSpec(name, "INT64", (-1, -1)) for name in inputs),
        (TensorSpec("output", "FP32", (-1, -1, 30522)),),
    )
    server.models_run["bert_base"] = lambda inputs: {"output": np.zeros((1, 1), np.float32)}

    def asked(longest: int) -> TestResponse:
        tensors = [
            {"name": name, "shape": [1, n], "datatype": "INT64", "data": [1] * n}
            for name, n in zip(inputs, (longest, 512, 512), strict=True)
        ]
        return client.post("/infer/bert_base", json={"inputs": tensors})

    assert_error(asked(513), 400, "tensors_refused", "`input_ids`", "513 tokens", "at most 512")
    assert server.calls == []
    assert asked(512).status_code == 200
    assert server.calls[-1]["inputs"]["input_ids"].shape == (1, 512)
    words = ["`input_ids` has 3", "`attention_mask` has 512"]
    assert_error(asked(3), 400, "tensors_refused", *words)
    assert len(server.calls) == 1


def npy(array: Any, *, pickled: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=pickled)
    return out.getvalue()


def test_a_numpy_file_in_and_out(client: FlaskClient) -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    response = client.post(
        "/infer/add",
        data=npy(a),
        content_type="application/x-npy",
        headers={"Accept": "application/x-npy"},
    )
    # One array, but the model has two inputs: which of them is meant?
    assert_error(response, 400, "tensors_refused", "`A` FP32 [-1, 3]", "`B` FP32 [-1, 3]")


def test_a_numpy_file_for_the_one_input(client: FlaskClient, server: FakeTriton) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    for array in (
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.asfortranarray(np.ones((2, 3), "f4")),
    ):
        response = client.post(
            "/infer/add",
            data=npy(array),
            content_type="application/x-npy",
            headers={"Accept": "application/x-npy"},
        )
        assert response.content_type == "application/x-npy"
        back = np.load(io.BytesIO(response.data), allow_pickle=False)
        assert back.dtype == np.float32
        assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_payload"),
        (b"\x93NUMPY", "bad_payload"),
        (b"hello", "bad_payload"),
        (npy(np.array([{"a": 1}], object), pickled=True), "bad_payload"),
        (npy(np.ones((2, 3), np.complex64)), "bad_payload"),
        (npy(np.ones((2, 3), np.float32))[:-1], "bad_payload"),
        (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
            b"'shape': (1000000000000, 3), }".ljust(128),
            "bad_payload",
        ),
        (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
            b"'shape': (True, 2), }".ljust(128)
            + bytes(8),
            "bad_payload",
        ),
        (b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "bad_payload"),
        (npy(np.ones((2, 4), np.float32)), "tensors_refused"),
        (npy(np.ones((2, 3), np.float64)), "tensors_refused"),
        (npy(np.ones((9, 3), np.float32)), "tensors_refused"),
    ],
)
def test_a_bad_numpy_file(client: FlaskClient, server: FakeTriton, data: bytes, code: str) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    response = client.post("/infer/add", data=data, content_type="application/x-npy")
    assert_error(response, 400, code)
    assert server.calls == []


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2", ">i8", ">u2", "f8", "f2", "i4", "?"])
def test_an_array_of_another_type_is_taken_when_the_hints_are_followed(
    client: FlaskClient, server: FakeTriton, dtype: str
) -> None:
    server.signatures["add"] = Signature(8, ADD.inputs[:1], ADD.outputs)
    array = np.ones((2, 3), dtype)
    for _ in range(3):
        response = client.post(
            "/infer/add",
            data=npy(array),
            content_type="application/x-npy",
            headers={"Accept": "application/x-npy"},
        )
        if response.status_code == 200:
            break
        assert response.status_code == 400
        hint = (response.json or {})["error"]["hint"]
        asked = re.search(r"array\.astype\(['\"](<?[a-z]+[0-9]+)['\"]\)", hint)
        assert asked, hint
        array = array.astype(asked[1])
    assert response.status_code == 200
    assert np.array_equal(np.load(io.BytesIO(response.data)), np.ones((2, 3)))


def test_an_output_that_is_none_is_named(client: FlaskClient) -> None:
    response = ask(client, "/infer/add", inputs=[tensor()], outputs=[{"name": "Nope"}])
    assert_error(response, 400, "bad_payload", "`outputs[0]`: there is no output 'Nope'", "SUM")


@pytest.mark.parametrize("payload", [{"npy": "abc"}, {"npy": 5}, {"inputs": [], "npy": "zzz"}])
def test_a_numpy_file_is_no_json(client: FlaskClient, payload: Any) -> None:
    response = ask(client, modelname="add", payload=payload)
    assert_error(response, 400, "bad_payload", "`inputs`")


# Tensors, version 2


def tensor(
    name: str = "A", shape: Any = (1, 3), datatype: Any = "FP32", data: Any = (1, 2, 3)
) -> Any:
    data = list(data) if isinstance(data, tuple) else data
    shape = list(shape) if isinstance(shape, tuple) else shape
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def test_a_v2_body_is_answered_with_one(client: FlaskClient) -> None:
    nested = tensor("B", (2, 3), data=[[10, 20, 30], [40, 50, 60.5]])
    response = ask(
        client,
        "/infer/add",
        id="42",
        inputs=[tensor("A", (2, 3), data=(1, 2, 3, 4, 5, 6)), nested],
        outputs=[{"name": "SUM"}],
    )
    assert response.json == {
        "model_name": "add",
        "id": "42",
        "outputs": [
            {"name": "SUM", "shape": [2, 3], "datatype": "FP32", "data": [11, 22, 33, 44, 55, 66.5]}
        ],
    }


def test_a_v2_body_goes_to_a_model_with_a_client_too(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", inputs=[tensor("input", (1,), data=(1,))])
    assert response.status_code == 400  # the model itself was asked, and has no such input


def test_a_model_without_a_client_takes_a_v2_payload(client: FlaskClient) -> None:
    response = ask(client, modelname="add", payload={"inputs": [tensor()]})
    assert (response.json or {})["result"]["outputs"][0]["data"] == [1, 2, 3]


def test_texts_are_tensors_too(client: FlaskClient) -> None:
    response = ask(client, "/infer/words", inputs=[tensor("IN", (2,), "BYTES", ["a", "é"])])
    assert (response.json or {})["outputs"][0]["data"] == ["a", "é"]


def test_infinity_itself_fits_into_every_type_that_has_it() -> None:
    for datatype in ("FP16", "FP32", "FP64"):
        array = converted([math.inf, -math.inf, math.nan, 65519.0], datatype, "inputs[0]")
        assert np.isinf(array).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], ["`inputs` is []"]),
        ("x", ["`inputs` is 'x'"]),
        ([3], ["`inputs[0]` is 3"]),
        ([tensor("C")], ["no input `C`", "`A` FP32 [-1, 3]"]),
        ([tensor("B")], ["`A` is missing"]),
        ([tensor(), tensor()], ["twice"]),
        ([tensor(datatype="FP33")], ["'FP33'", "FP32"]),
        ([tensor(datatype=None)], ["None"]),
        (
            [tensor(datatype="INT32")],
            ["`A` wants FP32 [-1, 3]; you sent INT32 [1, 3]", r"\"datatype\": \"FP32\""],
        ),
        (
            [tensor(datatype="FP64", shape=(3,))],
            ["wants FP32", r"\"datatype\": \"FP32\"", "send the same data as [1, 3]"],
        ),
        ([tensor(shape=(1, 2), data=(1, 2))], ["wants FP32 [-1, 3]; you sent FP32 [1, 2]"]),
        ([tensor(shape=(0, 2**21), data=())], ["has no numbers", "at most"]),
        ([tensor(shape=(3,))], ["you sent FP32 [3]", "as [1, 3]", "max_batch_size"]),
        (
            [tensor(shape=(9, 3), data=(1,) * 27)],
            ["9 items", "at most 8", "a larger max_batch_size"],
        ),
        ([tensor(shape=(2, 3))], ["3 elements", "wants 6"]),
        ([tensor(shape=[-1, 3])], ["`inputs[0].shape` is [-1, 3]"]),
        ([tensor(shape=[True, 3])], ["shape"]),
        ([tensor(data=["1", "2", "3"])], ["`inputs[0].data` has '1'", "FP32"]),
        ([tensor(data=[None, 1, 2])], ["None"]),
        ([tensor(data=[True, 1, 2])], ["True"]),
        ([tensor(data="AAAA")], ["binary data are not taken"]),
        ([tensor(datatype="UINT8", data=(1, 2, 256))], ["does not fit into UINT8", "0 to 255"]),
        ([tensor(datatype="INT64", data=(1, 2, 2**63))], ["does not fit into INT64"]),
        ([tensor(datatype="INT8", data=(1, 2, 2.5))], ["2.5", "INT8"]),
        (
            [tensor(datatype="FP16", data=(7e4, -1e6, math.inf))],
            ["has -1000000.0, which does not fit into FP16", "expected -65504 to 65504"],
        ),
        ([tensor(data=(1, 1e39, 2))], ["has 1e+39, which does not fit into FP32", "3.40282e+38"]),
        ([tensor(datatype="FP64", data=(1, 2, 10**400))], ["does not fit into FP64"]),
        (
            [{**tensor(), "parameters": {"content_type": "pd"}}],
            ["`inputs[0].parameters.content_type` is 'pd'", "np or str or base64"],
        ),
        ([{**tensor(), "parameters": {"content_type": "base64"}}], ["no BYTES"]),
        ([tensor(), tensor("B", (2, 3), data=(1,) * 6)], ["the batch"]),
    ],
)
def test_wrong_tensors_are_refused_before_triton_is_asked(
    client: FlaskClient, server: FakeTriton, inputs: Any, words: list[str]
) -> None:
    response = ask(client, "/infer/add", inputs=inputs)
    assert response.status_code == 400
    for word in words:
        assert word in response.text
    assert server.calls == []


def test_each_of_several_models_is_given_the_fields_that_it_takes(client: FlaskClient) -> None:
    payload = {"img": image(Red, (100, 50)), "text": "a [MASK]"}
    for body in (payload, [payload, payload]):
        response = ask(client, modelname=["resnet", "bert_base"], payload=body)
        assert [one["status"] for one in (response.json or {})["results"].values()] == [200, 200]


@pytest.mark.parametrize(
    ("model", "payload", "words"),
    [
        ("resnet", {"img": RED, "confidence": 0.9},
         ["unknown field 'confidence'", "the payload may have img", "top_k, format"]),
        ("resnet", {"img": RED, "top_k": 1}, ['{"parameters": {"top_k": …}}', "beside `payload`"]),
        ("yolov5", {"confidence": 0.9, "img": RED}, ['{"parameters": {"confidence": …}}']),
        ("yolov5", {"img": RED, "parameters": {"iou": 1}}, ["`parameters` goes beside `payload`"]),
        ("bert_base", {"text": "a [MASK]", "text_pair": "b"}, ["'text_pair'", "may have text"]),
        ("bert_base", {"text": "a [MASK]", "top_k": 1}, ['{"parameters": {"top_k": …}}']),
    ],
)  # fmt: skip
def test_what_a_family_does_not_read_is_refused_in_a_payload(
    client: FlaskClient, server: FakeTriton, model: str, payload: dict[str, Any], words: list[str]
) -> None:
    """By itself, in a list, in one line of several and as one request of several."""
    right = {name: payload[name] for name in ("img", "text") if name in payload}
    one = {"modelname": model, "payload": payload}
    lines = json.dumps({**one, "payload": right}) + "\n" + json.dumps(one)
    alone = client.post("/invocations", json=one)
    assert server.calls == []
    listed = client.post("/invocations", json={**one, "payload": [right, payload]})
    in_lines = client.post("/invocations", data=lines, content_type="application/jsonlines")
    mixed = client.post("/invocations", json={"requests": [one]}).json or {}
    assert (alone.status_code, listed.status_code) == (400, 400)
    errors = [
        (alone.json or {})["error"],
        (listed.json or {})["error"],
        json.loads(in_lines.text.splitlines()[1])["error"],
        mixed["results"][0]["error"],
    ]
    for error in errors:
        assert error["code"] == "bad_payload"
        for word in words:
            assert word in error["message"] + error["hint"]
    assert "payload[1]" in errors[1]["message"]


@pytest.mark.parametrize("number", ["1e400", "-1e309", "9" * 400 + ".0"])
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_a_number_beyond_every_float_is_not_taken_for_infinity(
    client: FlaskClient, server: FakeTriton, number: str, datatype: str
) -> None:
    body = json.dumps({"inputs": [tensor(datatype=datatype, data=(1, math.inf, -3))]})
    response = client.post("/infer/add", data=body.replace("-3", number))
    assert_error(response, 400, "bad_payload", f"does not fit into {datatype}", "or Infinity")
    assert server.calls == []


@pytest.mark.parametrize("said", ["str", "np", None])
def test_a_content_type_that_means_nothing_here_is_no_matter(
    client: FlaskClient, said: str | None
) -> None:
    """MLServer's: docs.seldon.ai/mlserver, "Content Types (and Codecs)"."""
    one = {**tensor("IN", (1,), "BYTES", ["cmVk"]), "parameters": {"content_type": said}}
    output = {"name": "OUT", "parameters": {"content_type": said}}
    body = {"inputs": [one], "outputs": [output], "parameters": {"content_type": said}}
    answer = client.post("/infer/words", json=body).json or {}
    assert answer["outputs"][0]["data"] == ["cmVk"]


def test_texts_in_base64_are_decoded(client: FlaskClient, server: FakeTriton) -> None:
    parameters = {"content_type": "base64"}
    one = {**tensor("IN", (2,), "BYTES", ["cmVk", "/9j/4A=="]), "parameters": parameters}
    assert client.post("/infer/words", json={"inputs": [one]}).status_code == 200
    assert server.calls[-1]["inputs"]["IN"].tolist() == [b"red", b"\xff\xd8\xff\xe0"]
    one["data"] = ["cmVk", "red!"]
    response = client.post("/infer/words", json={"inputs": [one]})
    assert_error(response, 400, "bad_payload", "`inputs[0].data`", "base64", "content_type out")
    for body in (
        {"inputs": [tensor("IN", (1,), "BYTES", ["a"])], "parameters": parameters},
        {
            "inputs": [tensor("IN", (1,), "BYTES", ["a"])],
            "outputs": [{"name": "OUT", "parameters": parameters}],
        },
    ):
        response = client.post("/infer/words", json=body)
        assert_error(response, 400, "bad_payload", "parameters.content_type` is 'base64'")


def test_a_time_in_a_v2_body_is_not_passed_over(client: FlaskClient) -> None:
    response = ask(client, "/infer/add", inputs=[tensor()], timeout_ms=5)
    assert_error(response, 400, "bad_body", "timeout_ms", "query")


# Several at once


def test_several_models_about_one_payload_decoded_once(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clients import base  # noqa: PLC0415

    decoded: list[int] = []
    decode = base.decode_picture

    def counted(*arguments: Any) -> Any:
        decoded.append(1)
        return decode(*arguments)

    monkeypatch.setattr(base, "decode_picture", counted)
    response = ask(
        client,
        modelname=["resnet", "yolov5", "nosuch"],
        payload={"img": image(Red, (100, 50))},
        parameters={"top_k": 1},
    )
    assert response.status_code == 200
    results = (response.json or {})["results"]
    assert list(results) == ["resnet", "yolov5", "nosuch"]
    assert results["resnet"] == {"status": 200, "result": ["1.000000:7:cock"]}
    assert results["yolov5"]["result"][0][0] == 2
    assert results["nosuch"]["status"] == 404
    assert results["nosuch"]["error"]["code"] == "unknown_model"
    assert results["nosuch"]["error"]["modelname"] == "nosuch"
    assert decoded == [1]


def test_what_another_model_reads_is_waited_for_until_the_deadline() -> None:
    once, payload, reads, may_end = Once(), object(), threading.Event(), threading.Event()

    def read() -> str:
        reads.set()
        may_end.wait(10)
        return "read"

    first = threading.Thread(target=lambda: once(payload, read), daemon=True)
    first.start()
    assert reads.wait(10)
    came: list[Exception] = []

    def wait() -> None:
        try:
            with Request(deadline=time.monotonic() + 0.2).active():
                once(payload, lambda: "again")
        except Exception as error:
            came.append(error)

    second = threading.Thread(target=wait, daemon=True)
    second.start()
    second.join(10)
    may_end.set()
    first.join(10)
    assert [type(error) for error in came] == [DeadlineExceeded]
    assert once(payload, lambda: "again") == "read"


def test_several_models_run_at_the_same_time(client: FlaskClient, server: FakeTriton) -> None:
    both = threading.Barrier(2, timeout=5)  # breaks unless both are inside together

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
        (
            {"modelname": ["resnet", "yolov5"], "payload": {}, "parameters": {"tokp": 3}},
            ["'tokp'", "none of the models"],
        ),
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


def test_lines_are_answered_in_order_a_bad_one_in_its_place(client: FlaskClient) -> None:
    lines = [
        json.dumps({"modelname": "bert_base", "payload": {"text": "a [MASK]"}}),
        "not json",
        "",
        json.dumps({"modelname": "nosuch", "payload": {}}),
        json.dumps({"modelname": "bert_base", "payload": {"text": "no blank"}}),
        json.dumps({"modelname": "bert_base", "payload": {"text": "b [MASK]"}}),
    ]
    response = client.post(
        "/invocations", data="\n".join(lines), content_type="application/jsonlines"
    )
    assert response.content_type == "application/jsonlines"
    assert response.headers["X-Accel-Buffering"] == "no"
    answers = [json.loads(line) for line in response.text.splitlines()]
    assert [answer["status"] for answer in answers] == [200, 400, 404, 400, 200]
    assert answers[0]["result"][0]["token"] == "a many"
    assert answers[4]["result"][0]["token"] == "b many"


def test_one_large_body_of_json_is_read_at_a_time_and_small_ones_beside_it() -> None:
    """Python's parser keeps its lock to itself: several in a row leave nobody else a word."""
    large = json.dumps({"text": "a" * LARGE}).encode()
    came = []
    with one_is_read:
        other = threading.Thread(target=lambda: came.append(parsed(large)))
        other.start()
        assert parsed(b'{"text": "a"}') == {"text": "a"}
        other.join(0.2)
        assert not came
    other.join(10)
    assert came == [{"text": "a" * LARGE}]


def test_a_large_body_waits_for_others_until_its_deadline(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.execution.request.LARGE", 10)
    large = {"modelname": "bert_base", "payload": {"text": "a [MASK]"}}
    with one_is_read:
        response = ask(client, "/invocations?timeout_ms=200", **large)
        lines = client.post(
            "/invocations?timeout_ms=200",
            data=json.dumps(large),
            content_type="application/jsonlines",
        )
    assert_error(response, 504, "deadline_exceeded", "other large bodies")
    assert json.loads(lines.text)["error"]["code"] == "deadline_exceeded"
    assert ask(client, **large).status_code == 200, "nobody holds it any more"
