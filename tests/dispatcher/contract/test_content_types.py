"""Bodies by their content types: pictures and texts."""

from __future__ import annotations

import io
import json

import pytest
from flask.testing import FlaskClient

from tests.support.asking import PNG, form_of, part
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
        ("add", b"1,2\n", CSV, "unsupported_type", [CSV, "application/x-npy", "jsonlines"]),
        ("add", b"1,2\n", PDF, "unsupported_type", [PDF, "application/octet-stream", "image/*"]),
    ],
)
def test_what_is_not_taken_says_what_to_send_instead(
    client: FlaskClient, model: str, data: bytes, content_type: str, code: str, words: list[str]
) -> None:
    headers = {"Content-Type": content_type}
    assert_error(client.post(f"/infer/{model}", data=data, headers=headers), 415, code, *words)
