"""A class asks the clients of other models: what it gets, what goes wrong, and who is blamed."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.errors import (
    DeadlineExceeded,
    InferenceError,
    ModelFailed,
    ModelUnavailable,
    TooLargeAtOnce,
    UnknownModel,
)
from clients.plugins.registry import load_clients
from clients.triton.server import Signature
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import ASKING, HEAD, ROWS, ask, chain, doubled, served
from tests.support.slow_clients import milliseconds
from tests.support.stand_ins import assert_error

LINES = "application/jsonlines"


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton({"double": doubled}, {"double": ROWS})


@pytest.fixture
def client(tmp_path: Path, triton: FakeTriton) -> FlaskClient:
    return served(tmp_path, ASKING, triton)


def test_the_answer_is_the_result_that_a_caller_gets(
    client: FlaskClient, triton: FakeTriton
) -> None:
    direct = ask(client, "double", {"numbers": [1, 2.5]}).json["result"]
    assert direct == [2, 5]
    assert chain(client, numbers=[1, 2.5]).json["result"] == {"got": direct}
    assert chain(client, numbers=[1], parameters={"factor": 3}).json["result"] == {"got": [3]}
    assert chain(client, numbers=[1], name="twice").json["result"] == {"got": [2]}
    assert [call["version"] for call in triton.calls] == [""] * 4
    chain(client, numbers=[1], version="1")
    assert triton.calls[-1]["version"] == "1"


def test_several_payloads_go_in_batches_of_the_other_model(
    client: FlaskClient, triton: FakeTriton
) -> None:
    response = chain(client, made=[{"numbers": [n]} for n in range(10)])
    assert response.json["result"]["got"] == [[2 * n] for n in range(10)]
    assert [len(call["inputs"]["x"]) for call in triton.calls] == [4, 4, 2]
    assert chain(client, made=[]).json["result"]["got"] == []


def test_a_batch_that_is_too_large_is_halved(client: FlaskClient, triton: FakeTriton) -> None:
    def small(inputs: Any) -> Any:
        if len(inputs["x"]) > 1:
            raise TooLargeAtOnce("no memory")
        return doubled(inputs)

    triton.models_run["double"] = small
    answer = chain(client, made=[{"numbers": [n]} for n in (1, 2, 3)])
    assert answer.json["result"]["got"] == [[2], [4], [6]]


def test_a_model_without_a_class_is_asked_tensors(client: FlaskClient, triton: FakeTriton) -> None:
    triton.models_run["plain"], triton.signatures["plain"] = doubled, ROWS
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    answer = chain(client, name="plain", made={"inputs": [tensor]}).json["result"]["got"]
    assert answer["outputs"][0]["data"] == [2, 4]


CARRIED = """
class Inner(Own):
    def inference(self, payload):
        request = self.request
        request.response_attributes["seen_by"] = "inner"
        return [request.request_id, request.attributes["user"], request.time_left()]

class Chain(Own):
    def inference(self, payload):
        before = self.request
        inner = self.ask("inner", payload)
        return [inner, [self.request.request_id, self.request is before, self.request.time_left()]]
"""


def test_the_deadline_the_id_and_the_attributes_are_carried_along(tmp_path: Path) -> None:
    attributes = "X-Amzn-SageMaker-Custom-Attributes"
    response = served(tmp_path, CARRIED).post(
        "/infer/chain",
        json={"payload": {}},
        headers={attributes: "user=me;timeout_ms=50000", "X-Request-Id": "one-request"},
    )
    (inner_id, user, inner_left), (own_id, is_same, own_left) = (response.json or {})["result"]
    assert inner_id == own_id == "one-request"
    assert (user, is_same) == ("me", True)
    assert 0 < own_left <= inner_left <= 50
    assert response.headers[attributes] == "seen_by=inner"


PHASES = """
import time

from clients.images.pictures import EXAMPLE

class Inner(Own):
    model = "double"

    def inference(self, payload):
        time.sleep(0.02)
        self.picture({"img": EXAMPLE})
        self.infer({"x": np.ones((1, 1), np.float32)})
        time.sleep(0.04)

class Chain(Own):
    def inference(self, payload):
        time.sleep(0.03)
        self.ask("inner", {})
        time.sleep(0.05)
"""


def test_the_phases_of_the_asked_model_are_added_to_those_of_the_request(
    tmp_path: Path, triton: FakeTriton
) -> None:
    """Of what the classes do themselves only `picture` counts as decoding."""
    resting = threading.Event()

    def slow(inputs: Any) -> Any:
        resting.wait(0.06)
        return doubled(inputs)

    triton.models_run["double"] = slow
    response = ask(served(tmp_path, PHASES, triton), "chain")
    assert milliseconds(response, "inference") >= 60
    assert milliseconds(response, "class") >= 140
    assert milliseconds(response, "decode") > 0
    assert milliseconds(response, "postprocess") == 0


GENERATORS = """
class Counts(Own):
    example = {"to": 2}

    def inference(self, payload):
        yield from range(payload["to"])

class Chain(Own):
    def inference(self, payload):
        for to in (1, payload["to"]):
            yield self.ask("counts", {"to": to})
"""


def test_generators_ask_and_are_asked(tmp_path: Path) -> None:
    client = served(tmp_path, GENERATORS)
    assert ask(client, "chain", {"to": 3}).json["result"] == [[0], [0, 1, 2]]
    body, accept = {"payload": {"to": 3}}, {"Accept": LINES}
    lines = client.post("/infer/chain", json=body, headers=accept)
    assert [json.loads(one)["result"] for one in lines.text.splitlines()] == [[0], [0, 1, 2]]
    assert_error(ask(client, "chain", {"to": 1001}), 500, "ask_failed", "more than 1000 results")


BOTH_WAYS = """
class First(Own):
    other = "second"

    def inference(self, payload):
        asks = payload.get("asks")
        return [self.ask(self.other, {}) for _ in range(3)] if asks else self.modelname

class Second(First):
    other = "first"
"""


def test_chains_do_not_wait_for_one_another_where_each_model_has_one_slot(tmp_path: Path) -> None:
    """Each takes one slot, its caller's, so that nothing waits while it holds another."""
    (tmp_path / "mine.py").write_text(HEAD + BOTH_WAYS)
    environment = Environment(FakeTriton(), tmp_path / "no_models")
    registry = load_clients(environment, [tmp_path])
    settings = read_settings({"MODEL_SERVER_THREADS": "1"})
    app = make_app(settings, registry, environment, quiet())

    def one(name: str) -> Any:
        response = ask(app.test_client(), name, {"asks": True})
        return response.status_code, response.json.get("result")

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(one, ["first", "second"] * 12))
    assert answers == [(200, ["second"] * 3), (200, ["first"] * 3)] * 12


class Knowing(FakeTriton):
    """Knows the signatures of its own models alone, as a real one does."""

    def signature(self, model: str, version: str = "", *, timeout: float) -> Signature:
        if model not in self.models_run:
            raise UnknownModel(f"no {model}")
        return super().signature(model, version, timeout=timeout)


def test_a_class_without_a_model_of_its_own_takes_lists_and_asks_for_lines(tmp_path: Path) -> None:
    client = served(tmp_path, ASKING, Knowing({"double": doubled}, {"double": ROWS}))
    answer = ask(client, "chain", [{"numbers": [n]} for n in range(3)])
    assert answer.json["result"] == [{"got": [2 * n]} for n in range(3)]
    for accept, status in (("application/json, application/jsonlines", 200), (LINES, 406)):
        body = {"payload": {"numbers": [1]}}
        answer = client.post("/infer/chain", json=body, headers={"Accept": accept})
        assert answer.status_code == status, answer.json


PICTURES = """
class Shapes(Own):
    def inference(self, payload):
        picture = self.picture(payload)
        return [*picture.shape, picture[0, 0].tolist()]

class Chain(Own):
    def inference(self, payload):
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[10:30, 20:50] = 9, 8, 7
        part = picture[10:30, 20:50]
        made = {"part": part, "empty": part[:0], "float": part / 255, "grey": part[..., 0]}
        return self.ask("shapes", {"img": made[payload["which"]]})
"""


def test_a_part_of_a_picture_is_asked_as_it_is(tmp_path: Path) -> None:
    client = served(tmp_path, PICTURES)
    answer = ask(client, "chain", {"which": "part"}).json["result"]
    assert answer == [20, 30, 3, [9, 8, 7]]
    for which, shape in (("empty", "[0, 30, 3]"), ("float", "float64"), ("grey", "[20, 30]")):
        error = ask(client, "chain", {"which": which}).json["error"]
        assert error["code"] == "ask_failed"
        assert shape in error["hint"]
        assert "expected uint8 of shape [height, width, 3], RGB" in error["hint"]


ASKS = "'double', which 'chain' asks: "
PAYLOAD, PARAMETERS = (
    f"'chain' asked 'double', which refuses the {what} that the class made"
    for what in ("payload", "parameters")
)
CHANGE = "the model that dispatch.toml names, not the request: `numbers` is 'text'"
UNKNOWN = "'doubel', which 'chain' asks: there is no model 'doubel'"
LACKS = {"made": [{"numbers": [1]}, {"numbrs": [1]}]}
FACTOR = {"numbers": [1], "parameters": {"factor": 11}}


@pytest.mark.parametrize(
    ("payload", "status", "code", "message", "hint"),
    [
        # the caller's own field
        ({"numbers": "text"}, 400, "bad_payload", f"{ASKS}`numbers` is 'text'", "list of numbers"),
        # what the class made, of which nothing gets into the log
        ({"made": {"numbers": "text"}}, 500, "ask_failed", PAYLOAD, CHANGE),
        (LACKS, 500, "ask_failed", PAYLOAD, "payload[1]: `numbers` is missing"),
        (FACTOR, 500, "ask_failed", PARAMETERS, "`parameters.factor` is 11"),
        ({"numbers": [1], "name": "doubel"}, 404, "unknown_model", UNKNOWN, "models are: double"),
        ({"numbers": [1], "version": "7"}, 404, "unknown_version", f"{ASKS}no version 7", ""),
        ({"made": "text"}, 500, "client_failed", "unexpected exception", ""),
    ],
)
def test_an_error_names_the_model_and_blames_who_made_the_payload(
    client: FlaskClient, payload: Any, status: int, code: str, message: str, hint: str
) -> None:
    error = assert_error(ask(client, "chain", payload), status, code)
    assert message in error["message"]
    assert hint in error["hint"]
    assert error["modelname"] == "chain"
    assert "text" not in error["message"] or status == 400


class Computed(ModelFailed):
    message = property(lambda _: "it broke by itself")
    __init__ = Exception.__init__


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelFailed("it broke"), 502, "model_failed"),
        (Computed(), 502, "model_failed"),
        (ModelUnavailable("it is away"), 503, "model_unavailable"),
        (DeadlineExceeded("too late"), 504, "deadline_exceeded"),
    ],
)
def test_a_failure_of_the_asked_model_keeps_its_status(
    client: FlaskClient, triton: FakeTriton, error: InferenceError, status: int, code: str
) -> None:
    triton.models_run["double"] = error
    said = f"'double', which 'chain' asks: {error.message}"
    assert_error(chain(client, numbers=[1]), status, code, said)


def test_an_error_in_a_list_names_the_payload_of_the_caller(client: FlaskClient) -> None:
    said = "payload[1]: 'double', which 'chain' asks: `numbers` is 'text'"
    answer = ask(client, "chain", [{"numbers": [1]}, {"numbers": "text"}])
    assert_error(answer, 400, "bad_payload", said)


BUGS = """
class Buggy(Own):
    def inference(self, payload):
        return 1 / 0

    def inference_batch(self, payloads):
        return ["too few"]

class Chain(Own):
    def inference(self, payload):
        asked = [{}, {}] if payload.get("two") else {}
        return self.ask(payload.get("name", "buggy"), asked)

class Broken(Client):
    modelname = "broken"
"""


def test_a_bug_of_the_asked_class_is_in_the_log_and_one_that_is_disabled_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, BUGS)
    for payload, trace in (({}, "ZeroDivisionError"), ({"two": 1}, "for each of 2 payloads")):
        caplog.clear()
        said = "'buggy', which 'chain' asks: its client raised an unexpected exception"
        error = assert_error(ask(client, "chain", payload), 500, "ask_failed", said)
        assert trace in caplog.text
        assert error["request_id"] in caplog.text
    said = "'broken', which 'chain' asks: the client of 'broken' is disabled"
    assert_error(ask(client, "chain", {"name": "broken"}), 503, "client_disabled", said)
    assert ask(client, "chain", {"name": "healthy"}).status_code == 200


CIRCLES = """
def asking(name, other):
    def inference(self, payload):
        return self.ask(other, payload) if other else "the last"
    found = {"__module__": __name__, "aliases": (f"other-{name}",), "inference": inference}
    return type(name, (Own,), found)

A, B, Alone = asking("a", "b"), asking("b", "other-a"), asking("alone", "alone")
D1, D2, D3 = asking("d1", "d2"), asking("d2", "d3"), asking("d3", "d4")
D4, D5, D6 = asking("d4", "d5"), asking("d5", "d6"), asking("d6", "")
"""


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("a", "in a circle: a → b → a"),
        ("b", "in a circle: b → a → b"),
        ("other-alone", "in a circle: alone → alone"),
        ("d1", "a chain has too many models: d1 → d2 → d3 → d4 → d5 → d6"),
    ],
)
def test_a_circle_and_a_chain_without_end_are_refused(
    tmp_path: Path, name: str, chain: str
) -> None:
    client = served(tmp_path, CIRCLES)
    assert_error(ask(client, name), 500, "ask_failed", chain)
    assert ask(client, "d2").json["result"] == "the last"


def test_the_log_has_nothing_of_a_payload(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = chain(client, made={"numbers": "a secret"}).json["error"]
    assert "a secret" in error["hint"], "the caller sees what was refused"
    assert "a secret" not in error["message"], "which the log has"
    assert "a secret" not in caplog.text
