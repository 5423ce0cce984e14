"""What goes wrong when a class asks another model, and whose fault it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from clients.base import Environment
from clients.errors import DeadlineExceeded, ModelFailed, ModelUnavailable
from clients.plugins.registry import load_clients
from dispatcher.settings import read_settings
from dispatcher.wsgi import make_admission
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.own_clients import ASKING, HEAD, ask, chain, served
from tests.support.stand_ins import assert_error


@pytest.mark.parametrize(
    ("payload", "status", "code", "message", "hint"),
    [
        (  # the caller's own field
            {"numbers": "text"},
            400,
            "bad_payload",
            "'double', which 'chain' asks: `numbers` is 'text'",
            "expected a list of numbers",
        ),
        (  # what the class made, of which nothing gets into the log
            {"made": {"numbers": "text"}},
            500,
            "ask_failed",
            "'chain' asked 'double', which refuses the payload that the class made",
            "change the class, not the request: `numbers` is 'text'",
        ),
        (
            {"made": [{"numbers": [1]}, {"numbrs": [1]}]},
            500,
            "ask_failed",
            "which refuses the payload that the class made",
            "payload[1]: `numbers` is missing",
        ),
        (
            {"numbers": [1], "parameters": {"factor": 11}},
            500,
            "ask_failed",
            "which refuses the parameters that the class made",
            "`parameters.factor` is 11",
        ),
        (
            {"numbers": [1], "name": "doubel"},
            404,
            "unknown_model",
            "'doubel', which 'chain' asks: there is no model 'doubel'",
            "the served models are: double",
        ),
        (
            {"numbers": [1], "version": "7"},
            404,
            "unknown_version",
            "'double', which 'chain' asks: no version 7",
            "",
        ),
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


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ModelFailed("it broke"), 502, "model_failed"),
        (ModelUnavailable("it is away"), 503, "model_unavailable"),
        (DeadlineExceeded("too late"), 504, "deadline_exceeded"),
    ],
)
def test_a_failure_of_the_asked_model_keeps_its_status(
    client: FlaskClient, triton: FakeTriton, error: Exception, status: int, code: str
) -> None:
    triton.models_run["double"] = error
    assert_error(chain(client, numbers=[1]), status, code, f"'double', which 'chain' asks: {error}")


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
        return self.ask("buggy", [{}, {}] if payload.get("two") else {})

class Broken(Client):
    modelname = "broken"
"""


def test_a_bug_of_the_asked_class_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = served(tmp_path, BUGS)
    for payload, trace in (({}, "ZeroDivisionError"), ({"two": 1}, "for each of 2 payloads")):
        caplog.clear()
        said = "'buggy', which 'chain' asks: its client raised an unexpected exception"
        error = assert_error(ask(client, "chain", payload), 500, "ask_failed", said)
        assert trace in caplog.text
        assert error["request_id"] in caplog.text


def test_a_model_that_is_known_not_to_answer_is_refused_as_to_callers(
    tmp_path: Path, triton: FakeTriton
) -> None:
    (tmp_path / "mine.py").write_text(HEAD + ASKING + BUGS[BUGS.index("class Broken") :])
    environment = Environment(triton, tmp_path / "no_models")
    registry = load_clients(environment, [tmp_path])
    admission = make_admission(settings := read_settings({}))
    client = make_app(settings, registry, environment, quiet(), admission).test_client()
    said = "'broken', which 'chain' asks: the client of 'broken' is disabled"
    assert_error(chain(client, numbers=[1], name="broken"), 503, "client_disabled", said)
    assert chain(client, numbers=[1]).status_code == 200


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
