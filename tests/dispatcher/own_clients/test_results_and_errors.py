"""What an author's client may return and raise, and what outlives its request."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import answering, ask, served
from tests.support.stand_ins import assert_error

RAISES = "type('D', (dict,), {{'items': lambda self: (_ for _ in ()).throw({})}})({{1: 1}})"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("np.zeros(3)", "Object of type ndarray"),
        ("{'boxes': [{'x': 1}, {'x': np.float32(1)}]}", "Object of type float32"),
        ("{(1, 2): 3}", "keys must be str, int, float, bool or None, not tuple"),
        ("{'a': {float('nan'): 3}}", "Out of range float values"),
        ("10**5000", "4300 digits"),
        ("{10**5000: 3}", "4300 digits"),
        ("(lambda a: a.append(a) or a)([])", "recursion"),
        (RAISES.format("RuntimeError('x' * 1000)"), "represent: xxx"),
        (RAISES.format("type('Odd', (Exception,), {'__str__': lambda e: 1 / 0})()"), ": Odd"),
    ],
)
def test_a_result_that_is_not_json_is_named(
    tmp_path: Path, expression: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering(expression))
    error = assert_error(ask(client), 500, "client_failed")
    assert words in error["message"]
    assert len(error["message"]) < 400
    assert ".tolist()" in error["hint"]
    assert "'mine'" in caplog.text
    assert ask(client, "healthy").json["result"] == "well"


OWN_ERROR = """
class TooLoud(BadPayload):
    hint = "send a quieter one"

    def __init__(self, loudness):
        {0}

class Mine(Own):
    def inference(self, payload):
        raise TooLoud(5)
"""
FAILING_RESULT = """
class Odd(dict):
    def items(self):
        raise {0}("boo")

class Mine(Own):
    def inference(self, payload):
        return {{"boxes": Odd(x=float("nan"))}}
"""
FAILING_ERROR = """
class TooLoud(BadPayload):
    @property
    def message(self):
        raise {0}("secret")

    @message.setter
    def message(self, text):
        pass

class Mine(Own):
    def inference(self, payload):
        raise TooLoud("5")
"""
FAULTS = [
    *map(answering, ["np.zeros(3)", "1 / 0", "exit()", "{}['secret']"]),
    *map(OWN_ERROR.format, ["self.message = loudness", "self.hint = self"]),
    *map(FAILING_RESULT.format, ["KeyError", "ValueError", "RecursionError"]),
    *map(FAILING_ERROR.format, ["KeyError", "ValueError", "RecursionError"]),
]


@pytest.mark.parametrize("source", [OWN_ERROR.format("self.loudness = loudness"), *FAULTS])
@pytest.mark.parametrize("form", ["one", "list", "requests", "several", "lines"])
def test_what_is_wrong_with_one_class_is_that_model_s_alone(
    tmp_path: Path, source: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the class has a constant text, and its traceback in the log."""
    client = served(tmp_path, source)
    mine, healthy = ({"modelname": name, "payload": {}} for name in ("mine", "healthy"))
    if form in ("one", "list"):
        response = ask(client, payload=[{}] if form == "list" else {})
        bad, others = {"status": response.status_code, **response.json}, []
    elif form == "lines":
        body = "\n".join(map(json.dumps, [healthy, mine, healthy]))
        response = client.post("/invocations", data=body, content_type="application/jsonlines")
        first, bad, last = map(json.loads, response.text.splitlines())
        others = [first, last]
    elif form == "requests":
        response = client.post("/invocations", json={"requests": [mine, healthy]})
        bad, *others = response.json["results"]
    else:
        response = ask(client, ["mine", "healthy"])
        bad, *others = response.json["results"].values()
    error, answered = bad["error"], (bad["status"], bad["error"]["code"])
    if source in FAULTS:
        assert answered == (500, "client_failed")
        assert error["modelname"] == "mine"
        assert "secret" not in str(error)
        assert "'mine'" in caplog.text
        assert caplog.records[-1].exc_info is not None
    else:
        assert answered == (400, "bad_payload")
        assert "TooLoud: 5" in error["message"]
        assert error["hint"] == "send a quieter one"
    assert all((other["status"], other["result"]) == (200, "well") for other in others)


THREADS = """
import contextvars
from concurrent.futures import ThreadPoolExecutor

class Mine(Own):
    def inference(self, payload):
        with ThreadPoolExecutor(2) as pool:
            run = [[contextvars.copy_context().run] * ("copied" in payload) for _ in range(2)]
            asks = [pool.submit(*run[n], self.infer, {"x": np.array([n + 1])}) for n in range(2)]
            return [ask.result()["y"].tolist() for ask in asks]

class Eager(Mine):
    def __init__(self, environment):
        super().__init__(environment)
        self.size = self.max_batch_size
"""


def test_where_there_is_no_request_its_author_is_told_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeTriton({"mine": lambda inputs: {"y": inputs["x"] + 1}})
    client = served(tmp_path, THREADS, server)
    assert ask(client, payload={"copied": True}).json["result"] == [[2], [3]]
    assert_error(ask(client), 500, "client_failed")
    assert "there is no request here" in caplog.text
    assert "`contextvars.copy_context().run`" in caplog.text
    said = "there is no request here: `__init__` runs before any request"
    assert_error(ask(client, "eager"), 503, "client_disabled", said)


def test_what_a_class_takes_may_be_a_property(tmp_path: Path) -> None:
    takes = "media = property(lambda self: {'text': 'text'})"
    client = served(tmp_path, answering("payload['text']", takes))
    response = client.post("/infer/mine", data="hello", content_type="text/plain")
    assert (response.json or {})["result"] == "hello"


KEPT = """
class TooLoud(BadPayload):
    def __init__(self, loudness, *, limit):
        self.loudness, self.limit = loudness, limit

    @property
    def message(self):
        return f"{self.loudness} is above {self.limit}"

ERROR = <error>

class Mine(Own):
    max_batch_size = 2

    def inference(self, payload):
        if payload:
            raise ERROR

class Other(Mine):
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

    def message_of(name: str, payload: Any) -> str:
        said = assert_error(ask(client, name, payload), 400, "bad_payload")
        assert said["hint"] == ("mend it" if "mend" in error else "")
        return str(said["message"])

    for _ in range(2):
        assert message_of("mine", [{}, {}, {}, {"x": 1}]) == f"payload[3]: {message}"
        assert message_of("mine", [{"x": 1}]) == f"payload[0]: {message}"
        assert message_of("mine", {"x": 1}) == message
        assert message_of("other", [{}]) == message


STRIPPED = """
class Mine(Own):
    def inference(self, payload):
        return [
            self.picture({"img": payload[name].partition(",")[2]}).tolist() for name in ("a", "b")
        ]

class Other(Mine):
    pass
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
        class Mine(Own):
            def inference(self, payload):
                return [payload.pop("scale"), payload["box"]["corners"].pop()]

        class Other(Mine):
            pass
    """
    client = served(tmp_path, source)
    payload = {"scale": 2, "box": {"corners": [1, 5]}}
    one = {"status": 200, "result": [2, 5]}
    results = ask(client, ["mine", "other"], payload).json["results"]
    assert results == {"mine": one, "other": one}
    results = ask(client, ["mine", "other"], [payload] * 3).json["results"]
    assert [one["result"] for one in results.values()] == [[[2, 5]] * 3] * 2


def test_an_error_that_was_caught_may_be_the_message(tmp_path: Path) -> None:
    source = """
        class Mine(Own):
            def inference(self, payload):
                try:
                    return int(payload["count"])
                except ValueError as error:
                    raise BadPayload(error, hint=None)
    """
    response = ask(served(tmp_path, source), payload={"count": "many"})
    error = assert_error(response, 400, "bad_payload")
    assert "'many'" in error["message"]
    assert error["hint"] == ""
