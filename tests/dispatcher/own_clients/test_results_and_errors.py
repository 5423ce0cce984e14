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
    ],
)
def test_a_result_that_is_not_json_is_named(
    tmp_path: Path, expression: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering(expression))
    error = assert_error(ask(client), 500, "client_failed")
    assert words in error["message"]
    assert ".tolist()" in error["hint"]
    assert "'mine'" in caplog.text
    assert ask(client, "healthy").json["result"] == "well"


@pytest.mark.parametrize("expression", ["np.zeros(3)", "1 / 0", "exit()", "{}['secret']"])
def test_the_fault_of_one_client_does_not_spoil_the_others_answers(
    tmp_path: Path, expression: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering(expression))
    body = {"requests": [{"modelname": n, "payload": {}} for n in ("mine", "healthy")]}
    for sent in (body, {"modelname": ["mine", "healthy"], "payload": {}}):
        results = client.post("/invocations", data=json.dumps(sent)).json["results"]
        bad, good = results.values() if isinstance(results, dict) else results
        assert (bad["status"], bad["error"]["code"]) == (500, "client_failed")
        assert (good["status"], good["result"]) == (200, "well")
        assert "secret" not in json.dumps(results)
    assert bad["error"]["modelname"] == "mine"
    assert caplog.records[-1].exc_info is not None


OWN_ERROR = """
class TooLoud(BadPayload):
    hint = "send a quieter one"

    def __init__(self, loudness):
        {body}

class Mine(Own):
    def inference(self, payload):
        raise TooLoud(5)
"""


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ("self.loudness = loudness", 400, "bad_payload", "TooLoud: 5"),
        ("self.message = loudness", 500, "client_failed", "raised an unexpected exception"),
        ("self.hint = self", 500, "client_failed", "raised an unexpected exception"),
    ],
)
@pytest.mark.parametrize("form", ["one", "list", "requests", "several", "lines"])
def test_an_error_of_one_s_own_that_is_written_oddly_is_that_model_s_alone(
    tmp_path: Path, body: str, status: int, code: str, message: str, form: str
) -> None:
    client = served(tmp_path, OWN_ERROR.format(body=body))
    mine, healthy = ({"modelname": name, "payload": {}} for name in ("mine", "healthy"))
    if form in ("one", "list"):
        response = ask(client, payload=[{}] if form == "list" else {})
        bad, others = {"status": response.status_code, **response.json}, []
    elif form == "lines":
        response = client.post(
            "/invocations",
            data="\n".join(map(json.dumps, [healthy, mine, healthy])),
            content_type="application/jsonlines",
        )
        first, bad, last = map(json.loads, response.text.splitlines())
        others = [first, last]
    elif form == "requests":
        response = client.post("/invocations", json={"requests": [mine, healthy]})
        bad, *others = response.json["results"]
    else:
        response = ask(client, ["mine", "healthy"])
        bad, *others = response.json["results"].values()
    assert (bad["status"], bad["error"]["code"]) == (status, code)
    assert message in bad["error"]["message"]
    if status == 400:
        assert bad["error"]["hint"] == "send a quieter one"
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

    def told(name: str, payload: Any) -> str:
        said = assert_error(ask(client, name, payload), 400, "bad_payload")
        assert said["hint"] == ("mend it" if "mend" in error else "")
        return str(said["message"])

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

class Mine(Own):
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
        assert_error(ask(client, payload=sent), 500, "client_failed")
        assert "Traceback" in caplog.text
        assert "'mine'" in caplog.text
    results = ask(client, ["mine", "healthy"], payload).json["results"]
    assert results["mine"]["error"]["code"] == "client_failed"
    assert results["healthy"]["result"] == "well"


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
