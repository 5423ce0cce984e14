"""The HTTP layer and the clients, with a Triton that is a dictionary of functions."""

from __future__ import annotations

import base64
import io
import itertools
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from clients import errors
from clients.base import Client, Environment, Parameter
from clients.plugins.registry import Registry, load_clients
from clients.triton.client import renamed_config
from clients.triton.server import ModelState, Tensors
from dispatcher.app import create_app
from dispatcher.errors import ANSWERS
from dispatcher.readiness.prober import Prober
from dispatcher.readiness.status import Readiness
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.fake_triton import Arrays, FakeTriton

Red = [255, 0, 0]


class Prompt(Readiness):
    """Asks Triton whenever it is asked; its models are well, and were never probed."""

    def reasons(self) -> list[str]:
        prober: Prober = self.prober.__self__  # type: ignore[attr-defined]
        prober.list_models()
        for probe in prober.probes.values():
            probe.result = replace(probe.result, reason="", tried_in=1)
        prober.publish()
        return super().reasons()

    def report(self, name: str) -> None:
        return None


def quiet(server: FakeTriton | None = None, *required: str) -> Readiness:
    prober = Prober(required, Registry(), server or FakeTriton(), 8, 8)
    return Prompt(prober.supervisor, prober.status)


def image(colour: list[int], size: tuple[int, int] = (20, 10)) -> str:
    out = io.BytesIO()
    Image.new("RGB", size, tuple(colour)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def resnet(inputs: Tensors) -> Arrays:
    """Class 7 scores as red as the picture is, class 3 as green, class 5 as blue."""
    means = inputs["input"].mean((2, 3), np.float64)
    logits = np.full((len(means), 1000), -1, np.float32)
    logits[:, [7, 3, 5]] = means
    return {"output": logits}


def yolov5(inputs: Tensors) -> Arrays:
    """One object of class 2 in the middle of the square, 64 pixels wide and 32 high."""
    rows = np.zeros((len(inputs["images"]), 25200, 85), np.float32)
    rows[:, 100, :5] = [320, 320, 64, 32, 1]
    rows[:, 100, 7] = 0.75
    return {"output": rows}


def bert(inputs: Tensors) -> Arrays:
    """The word "many" with probability 0.5, then all others alike."""
    logits = np.zeros((*inputs["input_ids"].shape, 30522), np.float32)
    logits[..., 2116] = np.log(30521)  # "many" stands in line 2117 of vocab.txt
    return {"output": logits}


class Double(Client):
    modelname = "double"
    example = {"numbers": [1]}
    parameters = {"factor": Parameter(2.0, 0, 10, "what to multiply by")}

    def inference(self, payload: Any) -> Any:
        return (self.numbers(payload, "numbers") * self.request.parameters["factor"]).tolist()


class OwnError(errors.BadPayload):
    pass


class Raises(Client):
    modelname = "raises"
    example = {"error": "ValueError"}

    def inference(self, payload: Any) -> Any:
        kind = {"ValueError": ValueError, "OwnError": OwnError, "array": None}[payload["error"]]
        if kind is None:
            return np.zeros(3)
        raise kind("the secret text of the exception")


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton(
        {"resnet": resnet, "yolov5": yolov5, "bert_base": bert, "double": dict, "raises": dict}
    )


@pytest.fixture(scope="module")
def built_in() -> Registry:
    """The clients, made once: a tokenizer takes a while."""
    return load_clients(Environment(FakeTriton(), PROJECT / "model_repository"))


@pytest.fixture
def client(server: FakeTriton, built_in: Registry) -> FlaskClient:
    environment = Environment(server, PROJECT / "model_repository")
    for one in built_in.clients.values():
        one._environment = environment
    registry = Registry(
        {**built_in.clients, "double": Double(environment), "raises": Raises(environment)},
        {"broken": "Broken in /x/broken.py: it lacks the method inference(self, payload)"},
    )
    settings = read_settings({"REQUIRED_MODELS": "resnet,yolov5", "MODEL_SERVER_MAX_BODY_MB": "1"})
    readiness = quiet(server, *settings.required_models)
    return create_app(settings, registry, environment, renamed_config, readiness).test_client()


def ask(client: FlaskClient, **body: Any) -> TestResponse:
    return client.post("/invocations", data=json.dumps(body))


def assert_error(response: TestResponse, status: int, code: str, *words: str) -> None:
    """The one shape of every answer that is not 200."""
    assert response.status_code == status, response.text
    assert response.content_type == "application/json"
    assert set(response.json or {}) == {"error"}
    error = (response.json or {})["error"]
    assert {"code", "message", "hint", "request_id"} <= set(error)
    assert error["request_id"] == response.headers["X-Request-Id"]
    assert len(response.data) <= 2048
    assert error["code"] == code
    for word in words:
        assert word in f"{error['message']} | {error['hint']}"


# Answers


def test_resnet_answers_as_triton_writes_classes_best_first(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", payload={"img": image([255, 102, 51])})
    assert response.status_code == 200
    assert response.json == {
        "modelname": "resnet",
        "result": [
            "1.000000:7:cock",
            "0.400000:3:tiger shark, Galeocerdo cuvieri",
            "0.200000:5:electric ray, crampfish, numbfish, torpedo",
        ],
    }


def test_top_k_is_settable(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", payload={"img": image(Red)}, parameters={"top_k": 1})
    assert (response.json or {})["result"] == ["1.000000:7:cock"]


def test_yolov5_answers_pixels_of_the_picture_sent(client: FlaskClient) -> None:
    """100×50 is scaled by 6.4: 64×32 of the square are 10×5, around the middle at 50, 25."""
    response = ask(client, modelname="yolov5", payload={"img": image(Red, (100, 50))})
    assert (response.json or {})["result"] == [[2, 0.75, 45.0, 55.0, 22.5, 27.5, 100, 50]]


def test_yolov5_takes_confidence(client: FlaskClient) -> None:
    response = ask(
        client, modelname="yolov5", payload={"img": image(Red)}, parameters={"confidence": 0.8}
    )
    assert (response.json or {})["result"] == []


def test_bert_fills_the_mask(client: FlaskClient) -> None:
    text = "The world has [MASK] people."
    response = ask(client, modelname="bert_base", payload={"text": text}, parameters={"top_k": 1})
    assert (response.json or {})["result"] == [
        {"token": "The world has many people.", "score": 0.5}
    ]


def test_bert_fills_each_mask_by_itself(client: FlaskClient) -> None:
    response = ask(
        client,
        modelname="bert_base",
        payload={"text": "[MASK] of the [MASK]."},
        parameters={"top_k": 1},
    )
    assert (response.json or {})["result"] == [
        [{"token": "many of the [MASK].", "score": 0.5}],
        [{"token": "[MASK] of the many.", "score": 0.5}],
    ]


def test_a_list_is_answered_in_order_in_batches_of_the_model(
    client: FlaskClient, server: FakeTriton
) -> None:
    colours = [[255, 0, 0], [0, 255, 0], [0, 0, 255]] * 2
    response = ask(
        client,
        modelname="resnet",
        payload=[{"img": image(colour)} for colour in colours],
        parameters={"top_k": 1},
    )
    best = [result[0].split(":")[1] for result in (response.json or {})["result"]]
    assert best == ["7", "3", "5"] * 2
    assert sorted(len(call["inputs"]["input"]) for call in server.calls) == [2, 4]  # batches of 4


def test_a_list_is_run_one_by_one_where_rows_may_change_each_other(
    client: FlaskClient, server: FakeTriton
) -> None:
    """yolov5 has no `dynamic_batching`, by which its author says that they do not."""
    ask(client, modelname="yolov5", payload=[{"img": image(Red)}] * 3)
    assert [len(call["inputs"]["images"]) for call in server.calls] == [1, 1, 1]


def test_sentences_of_different_length_share_a_batch(
    client: FlaskClient, server: FakeTriton
) -> None:
    texts = ["A [MASK].", "A much longer [MASK] than the first, with a [MASK]."]
    response = ask(client, modelname="bert_base", payload=[{"text": text} for text in texts])
    short, long = (response.json or {})["result"]
    assert short[0]["token"] == "A many."
    assert [len(mask) for mask in long] == [5, 5]
    (call,) = server.calls
    attention = call["inputs"]["attention_mask"]
    assert attention.dtype == np.int64
    assert attention.sum(1).tolist() == [5, 14]  # what pads the first is not looked at


def test_a_client_without_batches_answers_lists_too(client: FlaskClient) -> None:
    response = ask(client, modelname="double", payload=[{"numbers": [1, 2]}, {"numbers": [3]}])
    assert (response.json or {})["result"] == [[2, 4], [6]]


def test_the_version_is_passed_on_and_answered(client: FlaskClient, server: FakeTriton) -> None:
    response = ask(client, modelname="resnet", modelversion=1, payload={"img": image(Red)})
    assert (response.json or {})["modelversion"] == "1"
    assert server.calls[-1]["version"] == "1"


def test_the_model_gets_what_is_left_of_the_time(client: FlaskClient, server: FakeTriton) -> None:
    ask(client, modelname="resnet", payload={"img": image(Red)})
    assert 50 < server.calls[-1]["timeout"] <= 54  # 90 % of 60 s


# Errors


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["not JSON", "nothing"]),
        (b"{", ["not JSON"]),
        (b"\xff\xfe", ["not JSON"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"[1]", ["not a JSON object"]),
        (b'{"payload": {}}', ["`modelname` is missing"]),
        (b'{"modelname": 7, "payload": {}}', ["`modelname` is 7", "the name of a model"]),
        (b'{"modelname": "", "payload": {}}', ["`modelname` is ''"]),
        (b'{"modelname": "resnet"}', ["`payload` is missing"]),
        (b'{"modelname": "resnet", "payload": "x"}', ["`payload` is 'x'", "an object"]),
        (b'{"modelname": "resnet", "payload": []}', ["list of 0", "1 to 1000"]),
        (b'{"modelname": "resnet", "payload": [1]}', ["`payload[0]` is 1"]),
        (b'{"modelname": "resnet", "payload": {}, "top_k": 3}', ["'top_k'", "parameters"]),
        (b'{"modelname": "resnet", "img": "x"}', ["'img'", "asked goes into `payload`"]),
        (b'{"text": "A [MASK]."}', ["'text'", "asked goes into `payload`"]),
        (b'{"model_name": "resnet", "payload": {}}', ["'model_name'", "write `modelname`"]),
        (b'{"model": "resnet", "img": "x"}', ["'model'", "write `modelname`"]),
        (b'{"modelName": "resnet", "payload": {}}', ["'modelName'", "write `modelname`"]),
        (b'{"modelname": "resnet", "model_version": 1}', ["write `modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "parameters": 3}', ["`parameters` is 3"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": "x"}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": 0}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": true}', ["`modelversion`"]),
        (b'{"modelname": "resnet", "payload": {}, "modelversion": "../1"}', ["`modelversion`"]),
    ],
)
def test_a_bad_body_says_what_was_expected(
    client: FlaskClient, body: bytes, words: list[str]
) -> None:
    response = client.post("/invocations", data=body, content_type="application/json")
    assert_error(response, 400, "bad_body", *words)


@pytest.mark.parametrize(
    ("modelname", "payload", "words"),
    [
        ("resnet", {}, ["`img` is missing", "nothing", "base64 of a picture"]),
        ("resnet", {"image": "x"}, ["`img` is missing", "'image'"]),
        ("resnet", {"img": 5}, ["`img` is 5", "base64 of a picture"]),
        ("resnet", {"img": ""}, ["`img` is ''"]),
        ("resnet", {"img": "not base64!"}, ["`img` is not base64"]),
        ("yolov5", {"img": "aGVsbG8gd29ybGQ="}, ["not a picture", "hello wo"]),
        ("bert_base", {"text": "no blank here"}, ["no [MASK]"]),
        ("bert_base", {"text": "[MASK] " + "word " * 600}, ["603 tokens", "at most 512"]),
        ("bert_base", {"text": ["[MASK]"]}, ["`text` is ['[MASK]']"]),
        ("double", {"numbers": "12"}, ["`numbers` is '12'", "list of numbers"]),
        ("double", {"numbers": [[1], [2, 3]]}, ["nested evenly"]),
    ],
)
def test_a_bad_payload_says_what_was_expected(
    client: FlaskClient, modelname: str, payload: Any, words: list[str]
) -> None:
    assert_error(ask(client, modelname=modelname, payload=payload), 400, "bad_payload", *words)


def test_one_bad_payload_of_many_is_named_by_its_place(client: FlaskClient) -> None:
    payload = [{"img": image(Red)}] * 5 + [{"img": "?"}]
    assert_error(
        ask(client, modelname="resnet", payload=payload), 400, "bad_payload", "payload[5]:"
    )


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"top_k": 0}, ["`parameters.top_k` is 0", "from 1 to 1000"]),
        ({"top_k": 1001}, ["1001"]),
        ({"top_k": 2.5}, ["whole number"]),
        ({"top_k": "3"}, ["`parameters.top_k` is '3'"]),
        ({"top_k": True}, ["True"]),
        ({"confidence": 0.5}, ["'confidence' is not known", "top_k"]),
    ],
)
def test_a_bad_parameter_says_what_was_expected(
    client: FlaskClient, parameters: Any, words: list[str]
) -> None:
    response = ask(client, modelname="resnet", payload={"img": "x"}, parameters=parameters)
    assert_error(response, 400, "bad_parameter", *words)


@pytest.mark.parametrize("body", ["1e400", "-1e400", "1" + "0" * 400, "NaN", "Infinity"])
def test_a_parameter_without_limits_is_a_finite_number(body: str) -> None:
    limitless = Parameter(1.0)
    assert limitless.expected == "a number"
    assert Parameter(1, low=0).expected == "a whole number from 0"
    assert Parameter(1, high=123456789).expected == "a whole number up to 123456789"
    with pytest.raises(errors.BadParameter, match=r"`parameters\.x` is "):
        limitless.read("x", json.loads(body))
    with pytest.raises(errors.BadParameter, match=r"`parameters\.x` is "):
        limitless.read_text("x", body.replace("Infinity", "inf"))
    assert Parameter(float("inf")).read("x", float("inf")) == float("inf")  # its own default


def test_nan_is_no_confidence(client: FlaskClient) -> None:
    response = ask(
        client, modelname="yolov5", payload={"img": image(Red)}, parameters={"iou": float("nan")}
    )
    assert_error(response, 400, "bad_parameter", "nan")


def test_an_unknown_model_lists_what_is_served_nearest_first(client: FlaskClient) -> None:
    response = ask(client, modelname="yolo5", payload={})
    assert_error(response, 404, "unknown_model", "'yolo5'", "served are: yolov5, ")


def test_an_unknown_version_is_404(client: FlaskClient) -> None:
    response = ask(client, modelname="resnet", modelversion=7, payload={"img": image(Red)})
    assert_error(response, 404, "unknown_version")


def test_a_disabled_client_says_why(client: FlaskClient) -> None:
    response = ask(client, modelname="broken", payload={})
    assert_error(response, 503, "client_disabled", "lacks the method inference")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (kind("what happened"), *ANSWERS[kind])
        for kind in ANSWERS
        if kind.__module__ == "clients.errors"
    ],
)
def test_what_the_model_server_says_is_passed_on(
    client: FlaskClient, server: FakeTriton, error: Exception, status: int, code: str
) -> None:
    server.models_run["resnet"] = error
    response = ask(client, modelname="resnet", payload={"img": image(Red)})
    assert_error(response, status, code, "what happened")
    assert ("Retry-After" in response.headers) == (status == 503)


def test_every_error_of_the_contract_has_an_answer() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert set(kinds) <= set(ANSWERS)
    assert len({code for _, code in ANSWERS.values()}) == len(ANSWERS), "a code means one thing"


def test_a_plugin_s_own_error_is_answered_as_the_class_it_comes_from(client: FlaskClient) -> None:
    response = ask(client, modelname="raises", payload={"error": "OwnError"})
    assert_error(response, 400, "bad_payload", "the secret text")


@pytest.mark.parametrize("kind", ["ValueError", "array"])
def test_a_bug_in_a_client_is_a_constant_text_and_a_traceback_in_the_log(
    client: FlaskClient, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = ask(client, modelname="raises", payload={"error": kind})
    assert_error(response, 500, "client_failed")
    assert response.json["error"]["modelname"] == "raises"
    assert "secret" not in response.text
    assert caplog.records[-1].exc_info is not None


def test_routing_errors_have_the_same_shape(client: FlaskClient) -> None:
    assert_error(client.get("/nowhere"), 404, "not_found", "POST /invocations")
    response = client.get("/invocations")
    assert_error(response, 405, "method_not_allowed", "Allow")
    assert "POST" in response.headers["Allow"]


def test_a_body_over_the_limit_is_413(client: FlaskClient) -> None:
    response = client.post("/invocations", data=b" " * (2**20 + 1))
    assert_error(response, 413, "too_large", "1 MiB")


def test_a_request_out_of_time_is_504(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 100)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    response = ask(client, modelname="resnet", payload={"img": image(Red)})
    assert_error(response, 504, "deadline_exceeded")


# Health


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_200_and_empty_when_all_is_ready(client: FlaskClient, method: str) -> None:
    response = client.open("/ping", method=method)
    assert (response.status_code, response.data) == (200, b"")


def test_ping_is_503_without_triton(client: FlaskClient, server: FakeTriton) -> None:
    server.ready, server.states = False, errors.ModelUnavailable("nobody")
    assert_error(client.get("/ping"), 503, "not_ready", "Triton is not ready")


def test_ping_names_the_required_model_and_the_reason(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.states = [
        ModelState("resnet", "1", "READY"),
        ModelState("yolov5", "1", "UNAVAILABLE", "no such file"),
        ModelState("optional", "1", "UNAVAILABLE", "nobody asks"),
    ]
    response = client.get("/ping")
    assert_error(response, 503, "not_ready", "'yolov5'", "no such file")
    assert "optional" not in response.text


def test_ping_is_503_when_triton_says_nothing(client: FlaskClient, server: FakeTriton) -> None:
    server.states = errors.DeadlineExceeded("no answer")  # type: ignore[assignment]
    server.ready = False
    assert_error(client.get("/ping"), 503, "not_ready", "no answer")


LATER = errors.DeadlineExceeded("no answer")


@pytest.mark.parametrize("path", ["/invocations?modelname=plain", "/models/plain/invoke"])
@pytest.mark.parametrize("silent_to_the_prober", [True, False])
def test_a_model_without_a_client_is_not_unknown_while_triton_is_silent(
    client: FlaskClient, server: FakeTriton, path: str, silent_to_the_prober: bool
) -> None:
    server.models_run["plain"] = dict
    server.states = LATER
    server.ready = not silent_to_the_prober
    client.get("/ping")
    response = client.post(path, data=json.dumps({"modelname": "plain", "payload": {}}))
    assert_error(response, 503, "model_unavailable")
    assert response.headers["Retry-After"]


def test_lists_lines_and_several_models_are_refused_without_asking_a_silent_triton(
    client: FlaskClient, server: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.states, server.ready = LATER, False
    client.get("/ping")
    monkeypatch.setattr(server, "models", lambda timeout: pytest.fail("it was asked"))
    body: dict[str, Any] = {"modelname": "plain", "payload": {}}
    listed = ask(client, modelname="plain", payload=[{}, {}])
    assert_error(listed, 503, "model_unavailable")
    lines = client.post(
        "/invocations", data=json.dumps(body), headers={"Content-Type": "application/jsonlines"}
    )
    assert json.loads(lines.data)["error"]["code"] == "model_unavailable"
    several = ask(client, modelname=["plain", "other"], payload={}).json or {}
    assert [one["error"]["code"] for one in several["results"].values()] == [
        "model_unavailable",
        "model_unavailable",
    ]


def test_a_model_with_a_client_is_asked_while_triton_loads_another(
    client: FlaskClient, server: FakeTriton
) -> None:
    server.states = LATER
    response = client.post("/models/double/invoke", data=json.dumps({"payload": {"numbers": [2]}}))
    assert (response.json or {})["result"] == [4.0]
