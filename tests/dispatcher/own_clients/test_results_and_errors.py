"""What an author's client may return and raise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import answering, ask, served


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("np.zeros(3)", "Object of type ndarray"),
        ("{'boxes': [{'x': 1}, {'x': np.float32(1)}]}", "Object of type float32"),
        ("{(1, 2): 3}", "keys must be str, int, float, bool or None, not tuple"),
        ("{'a': {float('nan'): 3}}", "Out of range float values"),
        ("{10**5000: 3}", "4300 digits"),
        ("(lambda a: a.append(a) or a)([])", "recursion"),
    ],
)
def test_a_result_that_is_not_json_is_named(
    tmp_path: Path, expression: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, answering(expression))
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert words in response.json["error"]["message"]
    assert ".tolist()" in response.json["error"]["hint"]
    assert "'mine'" in caplog.text
    assert ask(client, "healthy").json["result"] == "well"


@pytest.mark.parametrize("expression", ["np.zeros(3)", "1 / 0", "exit()", "{}['secret']"])
def test_the_fault_of_one_client_does_not_spoil_the_others_answers(
    tmp_path: Path, expression: str
) -> None:
    client = served(tmp_path, answering(expression))
    body = {"requests": [{"modelname": n, "payload": {}} for n in ("mine", "healthy")]}
    for sent in (body, {"modelname": ["mine", "healthy"], "payload": {}}):
        results = client.post("/invocations", data=json.dumps(sent)).json["results"]
        bad, good = results.values() if isinstance(results, dict) else results
        assert (bad["status"], bad["error"]["code"]) == (500, "client_failed")
        assert (good["status"], good["result"]) == (200, "well")
        assert "secret" not in json.dumps(results)


OWN_ERROR = """
class TooLoud(BadPayload):
    hint = "send a quieter one"

    def __init__(self, loudness):
        {body}

class Mine(Client):
    modelname = "mine"
    example = {{}}

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

class Mine(Client):
    modelname = "mine"
    example = {}

    def inference(self, payload):
        with ThreadPoolExecutor(2) as pool:
            asks = [
                pool.submit(*self.run(payload), self.infer, {"x": np.array([n])}) for n in (1, 2)
            ]
            return [ask.result()["y"].tolist() for ask in asks]

    def run(self, payload):
        return [contextvars.copy_context().run] if "copied" in payload else []

class Eager(Mine):
    modelname = "eager"

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
    response = ask(client)
    assert (response.status_code, response.json["error"]["code"]) == (500, "client_failed")
    assert "there is no request here" in caplog.text
    assert "`contextvars.copy_context().run`" in caplog.text
    error = ask(client, "eager").json["error"]
    assert error["code"] == "client_disabled"
    assert "there is no request here: `__init__` runs before any request" in error["message"]


def test_an_author_s_own_texts_are_told(tmp_path: Path) -> None:
    source = """
        class TooLoud(BadPayload):
            def __init__(self, loudness):
                self.loudness = loudness

            @property
            def message(self):
                return f"{self.loudness} is too loud"

        class Mine(Client):
            modelname = "mine"
            example = {}

            @property
            def media(self):
                return {"text": "text"}

            def inference(self, payload):
                raise TooLoud(5)
    """
    client = served(tmp_path, source)
    response = client.post("/infer/mine", data="hello", content_type="text/plain")
    assert (response.status_code, (response.json or {})["error"]["message"]) == (
        400,
        "5 is too loud",
    )
