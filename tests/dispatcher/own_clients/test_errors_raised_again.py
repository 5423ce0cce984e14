"""Errors and contexts that outlive their request."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.support.own_clients import ask, served

KEPT = """
class TooLoud(BadPayload):
    def __init__(self, loudness, *, limit):
        self.loudness, self.limit = loudness, limit

    @property
    def message(self):
        return f"{self.loudness} is above {self.limit}"

ERROR = <error>

class Mine(Client):
    modelname = "mine"
    example = {}
    max_batch_size = 2

    def inference(self, payload):
        if payload:
            raise ERROR

class Other(Mine):
    modelname = "other"

    def inference_batch(self, payloads):
        raise ERROR
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("BadPayload('bad number', hint='mend it')", "bad number"),
        ("TooLoud(5, limit=3)", "5 is above 3"),
    ],
)
def test_one_error_object_may_be_raised_again_and_again(
    tmp_path: Path, error: str, message: str
) -> None:
    client = served(tmp_path, KEPT.replace("<error>", error))

    def told(name: str, payload: Any) -> str:
        response = ask(client, name, payload)
        assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
        assert response.json["error"]["hint"] == ("mend it" if "mend" in error else "")
        return str(response.json["error"]["message"])

    for _ in range(2):
        assert told("mine", [{}, {}, {}, {"x": 1}]) == f"payload[3]: {message}"
        assert told("mine", [{"x": 1}]) == f"payload[0]: {message}"
        assert told("mine", {"x": 1}) == message
        assert told("other", [{}]) == message


FAILING = """
class Odd(dict):
    def items(self):
        raise {error}("boo")

class TooLoud(BadPayload):
    @property
    def message(self):
        raise {error}("boo")

    @message.setter
    def message(self, text):
        pass

class Mine(Client):
    modelname = "mine"
    example = {{}}

    def inference(self, payload):
        if "loud" in payload:
            raise TooLoud("5")
        return {{"boxes": Odd(x=float("nan"))}}
"""


@pytest.mark.parametrize("error", ["KeyError", "ValueError", "RecursionError"])
@pytest.mark.parametrize("payload", [{}, {"loud": True}])
def test_a_result_or_an_error_that_fails_when_it_is_read_is_the_client_s_fault(
    tmp_path: Path, error: str, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, FAILING.format(error=error))
    for sent in (payload, [payload]):
        caplog.clear()
        response = ask(client, payload=sent)
        assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
        assert "Traceback" in caplog.text
        assert "'mine'" in caplog.text
    results = ask(client, ["mine", "healthy"], payload).json["results"]
    assert results["mine"]["error"]["code"] == "client_failed"
    assert results["healthy"]["result"] == "well"


CONTEXT = """
class TooDark(BadPayload):
    pass

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        if "dark" in payload:
            raise TooDark("it is too dark", hint="switch on the light")
        request = self.request
        request.response_attributes["tone"] = "warm"
        return [request.request_id, request.attributes["room"], request.time_left() > 1]
"""


def test_the_request_s_context_is_read_and_attributes_go_back(tmp_path: Path) -> None:
    client = served(tmp_path, CONTEXT)
    header = "X-Amzn-SageMaker-Custom-Attributes"
    response = client.post(
        "/invocations",
        data=json.dumps({"modelname": "mine", "payload": {}}),
        headers={header: "room=kitchen", "X-Request-Id": "abc"},
    )
    assert response.json["result"] == ["abc", "kitchen", True]
    assert response.headers[header] == "tone=warm"
    response = ask(client, payload={"dark": True})
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
    assert response.json["error"]["hint"] == "switch on the light"


STRIPPED = """
class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        return [
            self.picture({"img": payload[name].partition(",")[2]}).tolist() for name in ("a", "b")
        ]

class Other(Mine):
    modelname = "other"
"""


def test_texts_that_a_client_makes_itself_are_told_from_each_other(tmp_path: Path) -> None:
    """Where several models are asked too, for which a picture is decoded once."""
    client = served(tmp_path, STRIPPED)
    pixels = {"a": [[[0, 0, 0]]], "b": [[[200, 200, 200]]]}
    payload = {}
    for name, rows in pixels.items():
        file = cv2.imencode(".bmp", np.array(rows, np.uint8))[1].tobytes()
        payload[name] = f"data:image/bmp;base64,{base64.b64encode(file).decode()}"
    results = ask(client, ["mine", "other"], payload).json["results"]
    assert [one["result"] for one in results.values()] == [list(pixels.values())] * 2


def test_what_a_client_changes_in_its_payload_no_other_model_sees(tmp_path: Path) -> None:
    source = """
        class Mine(Client):
            modelname = "mine"
            example = {}

            def inference(self, payload):
                return [payload.pop("scale"), payload["box"]["corners"].pop()]

        class Other(Mine):
            modelname = "other"
    """
    client = served(tmp_path, source)
    payload = {"scale": 2, "box": {"corners": [1, 5]}}
    one = {"status": 200, "result": [2, 5]}
    results = ask(client, ["mine", "other"], payload).json["results"]
    assert results == {"mine": one, "other": one}
    results = ask(client, ["mine", "other"], [payload] * 3).json["results"]
    assert [one["result"] for one in results.values()] == [[[2, 5]] * 3] * 2


CAUGHT = """
from clients.base import Client
from clients.errors import BadPayload

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        if "count" in payload:
            try:
                return int(payload["count"])
            except ValueError as error:
                raise BadPayload(error, hint=None)
        return 10**5000 if payload else None
"""


def test_an_error_that_was_caught_may_be_the_message(tmp_path: Path) -> None:
    response = ask(served(tmp_path, CAUGHT), payload={"count": "many"})
    assert (response.status_code, response.json["error"]["code"]) == (400, "bad_payload")
    assert "'many'" in response.json["error"]["message"]
    assert response.json["error"]["hint"] == ""


def test_a_number_of_too_many_digits_is_the_class_s_fault(tmp_path: Path) -> None:
    """Python writes no whole number of more than 4300."""
    response = ask(served(tmp_path, CAUGHT), payload={"large": True})
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
