"""A class that takes a file of any type gets its bytes by every route."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.asking import FORM, PNG, form_of
from tests.support.own_clients import ask, served
from tests.support.stand_ins import assert_error

SIZE = """
    class Mine(Own):
        media = {"file": "document"}

        def inference(self, payload):
            return self.file(payload, "document").hex()

    class Heard(Own):
        media = {"audio": "sound"}

        def inference(self, payload):
            return self.file(payload, "sound").hex()
"""
PDF = b"%PDF-1.7\r\n\xe2\xe3\xcf\xd3\0\n{["
LINES = b"\xef\xbb\xbftwo\nlines \xff"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PDF, "application/pdf"),
        (PDF, "application/octet-stream"),
        (PDF, "application/x-www-form-urlencoded"),  # curl's own
        (PDF, ""),
        (b"OggS\0", "audio/ogg"),
        (PNG, "image/png"),
        (PNG, ""),
        (LINES, "text/plain"),  # not decoded
        (b"a text", "text/plain; charset=utf-16"),
    ],
)
def test_a_file_arrives_as_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    client = served(tmp_path, SIZE)
    raw = client.post("/infer/mine", data=content, headers={"Content-Type": said})
    assert raw.json == {"modelname": "mine", "result": content.hex()}, raw.text
    forms = client.post("/infer/mine", data=form_of(content, said), content_type=FORM)
    assert forms.json == {"modelname": "mine", "result": [content.hex()]}, forms.text
    text = base64.b64encode(content).decode()
    assert ask(client, payload=[{"document": text}]).json["result"] == [content.hex()]


def test_a_sound_is_known_by_its_type_or_its_beginning(tmp_path: Path) -> None:
    client = served(tmp_path, SIZE)
    for content, said in [(b"?", "audio/x-wav"), (b"OggS", "application/ogg"), (b"fLaC", "")]:
        came = client.post("/infer/heard", data=content, headers={"Content-Type": said})
        assert came.json == {"modelname": "heard", "result": content.hex()}
    for content, said, code in [
        (PNG, "image/png", "unsupported_media"),
        (b"a text", "text/plain", "unsupported_media"),
        (PDF, "application/pdf", "unsupported_type"),
    ]:
        came = client.post("/infer/heard", data=content, headers={"Content-Type": said})
        assert_error(came, 415, code)


@pytest.mark.parametrize("payload", [{}, {"document": ""}, {"document": "a!"}, {"document": 7}])
def test_what_is_no_file_is_refused_with_a_hint(tmp_path: Path, payload: object) -> None:
    response = ask(served(tmp_path, SIZE), payload=[payload])
    assert_error(response, 400, "bad_payload", "document", "base64 of a file")
