"""Bodies by their content types: pictures, texts, forms, and files that do not say their type."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from clients.request import Media
from clients.triton.server import Signature, TensorSpec
from dispatcher.codecs.media import detect_media
from tests.support.asking import FORM, PNG, ask, form_of, part
from tests.support.fake_triton import FakeTriton
from tests.support.stand_ins import Red, assert_error, image


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


@pytest.mark.parametrize(
    ("said", "coding"),
    [
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("; charset=", "utf-8"),
        ("; charset=UTF-8", "utf-8-sig"),
        ('; charset="utf8"', "utf-8"),
        ("; charset=us-ascii", "utf-8"),
        ("; charset=ANSI_X3.4-1968", "utf-8"),
        ("; charset=ISO-8859-1", "latin-1"),
        ("; charset=iso_8859-1", "latin-1"),
        ("; charset=latin1", "latin-1"),
        ("; charset=windows-1252", "cp1252"),
    ],
)
def test_a_text_is_read_in_the_charset_that_it_says(
    client: FlaskClient, said: str, coding: str
) -> None:
    file, said = "A [MASK] café.".encode(coding), f"text/plain{said}"
    answer = client.post("/infer/bert_base?top_k=1", data=file, content_type=said).json or {}
    assert answer["result"] == [{"token": "A many café.", "score": 0.5}]
    form = client.post("/infer/bert_base?top_k=1", data={"t": (io.BytesIO(file), "t.txt", said)})
    assert (form.json or {})["result"] == [answer["result"]]


UNREADABLE = (
    *("charset=latin1, utf-8", "charset=utf-8 latin1", "charset=latin1; charset=utf-8"),
    *("charset =latin1", "charset: latin1", "charset", "x=y charset=latin1", 'charset="latin1'),
)
OTHERS = ("utf-16", "shift_jis", "unicode_escape", "rot13", "x" * 999)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *[(said, ["charset", "text/plain; charset=utf-8"]) for said in UNREADABLE],
        *[(f"charset={name}", [f"charset '{name[:50]}", "UTF-8"]) for name in OTHERS],
    ],
)
def test_a_charset_that_cannot_be_read_or_is_another_is_refused(
    client: FlaskClient, said: str, words: list[str]
) -> None:
    file, said = "A [MASK]. ".encode("utf-16"), f"text/plain; {said}"
    raw = client.post("/infer/bert_base", data=file, content_type=said)
    form = client.post("/infer/bert_base", data={"t": (io.BytesIO(file), "t.txt", said)})
    for response in (raw, form):
        assert_error(response, 415, "unsupported_type", *words)


def test_a_v2_body_may_come_as_octets(client: FlaskClient) -> None:
    """As callers of NVIDIA's image send it to SageMaker; a text in braces stays one."""
    numbers = {"shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"inputs": [{"name": "A", **numbers}, {"name": "B", **numbers}]}, indent=1)
    response = client.post("/infer/add", data=body, content_type="application/octet-stream")
    assert [one["data"] for one in (response.json or {})["outputs"]] == [[2, 4, 6]]
    text = b'{"inputs": "[MASK]"}'
    response = client.post("/infer/bert_base", data=text, content_type="application/octet-stream")
    assert response.status_code == 200


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
    path, octets = "/infer/bert_base?top_k=1", "application/octet-stream"
    found = (client.post(path, data=text, content_type=octets).json or {})["result"]
    assert len(found) == 3
    form = client.post(path, data={"t": (io.BytesIO(text), "t.txt", "text/plain")})
    assert (form.json or {})["result"] == [found]


@pytest.mark.parametrize(
    "text", ["a [MASK]\n", "\r\n a [MASK] \r\n\r\n", "a [MASK]\u2028b", "a [MASK].\0"]
)
def test_a_text_of_one_line_may_have_empty_ones_around_it(client: FlaskClient, text: str) -> None:
    """Or the zeros that C puts at the end of a text."""
    path = "/infer/bert_base?top_k=1"
    response = client.post(path, data=text.encode(), content_type="text/plain")
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


PDF, CSV, TWO = "application/pdf", "text/csv", "image/png, image/jpeg"


@pytest.mark.parametrize(
    ("model", "data", "content_type", "code", "words"),
    [
        ("bert_base", PNG, "image/png", "unsupported_media", []),
        ("bert_base", PNG, "application/x-image", "unsupported_media", []),
        ("resnet", b"hello", "text/plain", "unsupported_media", []),
        ("noted", PNG, "image/png", "unsupported_media", []),
        ("resnet", PNG, TWO, "unsupported_type", []),
        ("resnet", b"hello", "", "unsupported_type", []),
        ("resnet", b"1,2\n", CSV, "unsupported_media", ["a picture"]),
        ("noted", b"1,2\n", CSV, "unsupported_media", ["JSON alone"]),
        ("add", b"1,2\n", PDF, "unsupported_type", [PDF, "application/octet-stream", "image/*"]),
    ],
)
def test_what_is_not_taken_says_what_to_send_instead(
    client: FlaskClient, model: str, data: bytes, content_type: str, code: str, words: list[str]
) -> None:
    headers = {"Content-Type": content_type}
    assert_error(client.post(f"/infer/{model}", data=data, headers=headers), 415, code, *words)


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


def test_a_file_may_be_large_and_a_field_may_not(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a field 1 MiB is taken at most; here less, as the body may not have more itself."""
    monkeypatch.setattr("dispatcher.codecs.forms.MAX_IN_MEMORY", 2**18)
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    assert len(out.getvalue()) > 2**18
    body = part('name="file"; filename="f"', "image/png", out.getvalue()) + b"--b--\r\n"
    assert client.post("/infer/resnet", data=body, content_type=FORM).status_code == 200
    body = part('name="file"', "", out.getvalue()) + b"--b--\r\n"
    parts = part('name="file"; filename="f"', "", b"") * 1101 + b"--b--\r\n"
    for sent in (body, b"--b\r\nX: " + b"x" * 300_000, parts):
        response = client.post("/infer/resnet", data=sent, content_type=FORM)
        assert_error(response, 413, "too_large", "1100 parts", "1 MiB", "a file with a file name")


@pytest.mark.parametrize("content_type", ["", "text/plain", "image/png"])
def test_a_part_without_a_file_name_is_a_field(client: FlaskClient, content_type: str) -> None:
    body = part('name="file"', content_type, b"hello") + b"--b--\r\n"
    response = client.post("/infer/resnet", data=body, content_type=FORM)
    assert_error(response, 400, "bad_body", "unknown field 'file'", "with a file name")


def test_a_form_s_file_of_another_type_is_refused(client: FlaskClient) -> None:
    body = part('name="f"; filename="a.pdf"', "application/pdf", b"hello") + b"--b--\r\n"
    response = client.post("/infer/resnet", data=body, content_type=FORM)
    assert_error(response, 415, "unsupported_type", "'a.pdf' is of type application/pdf")


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
