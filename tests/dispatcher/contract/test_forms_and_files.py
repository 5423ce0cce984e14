"""Forms, and files that do not say what they are."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from clients.images.opening import FORMATS
from clients.request import Media
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs.media import IMAGE_SIGNATURE, detect_media
from tests.support.asking import FORM, PNG, ask, form_of, part
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import assert_error, image


def test_a_form_is_a_batch_answered_in_order(client: FlaskClient, server: FakeTriton) -> None:
    """Whatever its fields are."""
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]] * 2
    fields = ["one", "other", "one", "files", "files", "one"]
    body = part('name="modelname"', "", b"resnet") + part('name="parameters"', "", b'{"top_k": 1}')
    for name, colour in zip(fields, colours, strict=True):
        body += part(f'name="{name}"; filename="x.png"', "", base64.b64decode(image(colour)))
    response = client.post("/invocations", data=body + b"--b--\r\n", content_type=FORM)
    best = [result[0].split(":")[1] for result in (response.json or {})["result"]]
    assert best == ["7", "3", "5"] * 2
    assert sorted(len(call["inputs"]["input"]) for call in server.calls) == [2, 4]


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
    response = client.post("/invocations", data=body, content_type=FORM)
    best = [result[0].split(":")[2] for result in (response.json or {})["result"]]
    assert best == ["cock", "cock"]


def test_a_large_part_without_a_file_name_is_a_file_too(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all fields 1 MiB is taken at most; here less, as the body may not have more itself."""
    monkeypatch.setattr("dispatcher.codecs.forms.MAX_IN_MEMORY", 2**18)
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    assert len(out.getvalue()) > 2**18
    body = part('name="file"', "image/png", out.getvalue()) + b"--b--\r\n"
    assert client.post("/infer/resnet", data=body, content_type=FORM).status_code == 200
    body = part('name="file"', "", out.getvalue()) + b"--b--\r\n"
    parts = part('name="file"; filename="f"', "", b"") * 1101 + b"--b--\r\n"
    for sent in (body, b"--b\r\nX: " + b"x" * 300_000, parts):
        response = client.post("/infer/resnet", data=sent, content_type=FORM)
        assert_error(response, 413, "too_large", "1100 parts", "1 MiB", "a file with a file name")


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
    response = client.post("/infer/resnet", data=body, content_type=FORM)
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
    text = "BMW für alle".encode()
    for content_type in ("image/png", "application/x-www-form-urlencoded"):
        response = client.post("/infer/resnet", data=text, content_type=content_type)
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
    response = ask(client, modelname="resnet", payload=payload)
    assert_error(response, 400, "bad_payload", "expected base64 of")


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
    octets = "application/octet-stream"
    forms = [(form_of(content, said), FORM) for said in ("", octets)]
    for body, content_type in (*forms, (content, octets)):
        response = client.post(f"/infer/{modelname}", data=body, content_type=content_type)
        assert response.status_code == status
        for word in words:
            assert word in response.text


def test_what_is_no_text_is_a_picture_where_a_model_takes_both() -> None:
    """Its class may know formats that are not known here, such as TIFF."""
    tiff, both = b"II*\0\x08\0\0\0\xff\xfe", ("picture", "text")
    assert detect_media(Media("file", tiff), both) == Media("picture", tiff)
    assert detect_media(Media("file", b"a text"), both) == Media("text", "a text")


def test_a_file_of_a_form_that_is_neither_picture_nor_text_is_told_so(client: FlaskClient) -> None:
    body = form_of(b'{"text": "[MASK]"}', "application/json")
    for model in ("bert_base", "resnet"):
        response = client.post(f"/infer/{model}", data=body, content_type=FORM)
        words = ["'f.x' is of type application/json", "text/plain", "image/*"]
        assert_error(response, 415, "unsupported_type", *words)
    body = form_of(PNG, "binary/octet-stream")  # as S3 has it
    assert client.post("/infer/resnet", data=body, content_type=FORM).status_code == 200


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_picture_is_known_by_its_beginning(kind: str) -> None:
    for mode in ("1", "L", "RGB"):
        out = io.BytesIO()
        Image.new(mode, (3, 2)).convert("RGB" if kind == "WEBP" else mode).save(out, kind)
        assert IMAGE_SIGNATURE.match(out.getvalue())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"modelname": "bert_base", "t": (io.BytesIO(b"\xff"), "a", "text/plain")}, ["UTF-8"]),
        ({"modelname": "resnet"}, ["`files` is a list of 0"]),
        ({"f": (io.BytesIO(b"x"), "a"), "parameters": "{"}, ["JSON", "`parameters` is '{'"]),
        ({"modelname": "resnet", "top_k": "1"}, ["'top_k'", "parameters"]),
        ({"modelname": ["resnet", "yolov5"]}, ["`modelname` 2 times", "once"]),
        ({"modelname": "resnet", "parameters": ["{}"] * 3}, ["`parameters` 3 times"]),
        (
            {"parameters": (io.BytesIO(b"{}"), "blob", "application/json")},
            ["`parameters` was sent as a file", "without a file name"],
        ),
    ],
)
def test_a_form_that_cannot_be_read(client: FlaskClient, fields: Any, words: list[str]) -> None:
    response = client.post("/invocations", data=fields, content_type="multipart/form-data")
    assert_error(response, 400, "bad_body", *words)


# The library leaves what it has of a file to the code that drops the error.
@pytest.mark.filterwarnings("ignore:Exception ignored.*SpooledTemporaryFile")
@pytest.mark.parametrize(
    "form",
    [b"junk", b"--other--\r\n", part('name="a"; filename="a.png"', "", PNG)[:-2]],
    ids=["junk", "another boundary", "cut off"],
)
def test_a_form_that_cannot_be_read_is_not_an_empty_one(client: FlaskClient, form: bytes) -> None:
    response = client.post("/infer/resnet", data=form, content_type=FORM)
    assert_error(response, 400, "bad_body", "the form cannot be read", "boundary")
    response = client.post("/infer/resnet", data=form, content_type="multipart/form-data")
    assert_error(response, 400, "bad_body", "boundary")


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
