"""Stateful models, each sequence with its own sum, and decoupled ones, which answer one by one."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import PATIENCE_S, PROJECT, Answer, Endpoint, running, wait_for
from tests.support.front import key_lines

KEYS = {name: {"x-api-key": f"key-of-{name}"} for name in ("alice", "bob")}
SLOTS = 4

CLIENTS = """
from clients.base import Client
from clients.errors import ModelFailed


class Running(Client):
    modelname = "running"
    model = "total"
    example = {"number": [1]}

    def inference(self, payload):
        return self.infer({"X": self.numbers(payload, "number")})["TOTAL"].tolist()


class Down(Client):
    modelname = "down"
    model = "countdown"
    example = {"number": [1]}

    def inference(self, payload):
        number = self.numbers(payload, "number").astype("int32")
        for answer in self.stream({"FROM": number}):
            left = answer["LEFT"].item()
            if payload.get("fails") == left:
                raise ModelFailed("it fell over")
            yield left


class Crawling(Down):
    modelname = "crawling"
    model = "crawl"
"""

CHAIN = """
platform: "ensemble"
input { name: "FROM" data_type: TYPE_INT32 dims: 1 }
output { name: "LEFT" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling { step {
  model_name: "countdown" model_version: -1
  input_map { key: "FROM" value: "FROM" }
  output_map { key: "LEFT" value: "LEFT" }
} }
"""
# What Triton's ensembles say besides.
OF_CHAIN = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
ERROR = "pb_utils.InferenceResponse(error=pb_utils.TritonError('it broke'))"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Serve `total`, `countdown` and variants of them to who has a key.

    The sequences of `named` have texts for ids, and those of `brief` are soon left for too long.
    """
    folder = tmp_path_factory.mktemp("stateful")
    repository = folder / "repository"
    for example in ("sequence", "streaming"):
        shutil.copytree(PROJECT / "examples" / example / "models", repository, dirs_exist_ok=True)
    config = (repository / "total" / "config.pbtxt").read_text()
    config = config.replace(": 100 }", f": {SLOTS} }}")
    (repository / "total" / "config.pbtxt").write_text(config)
    for name, was, value in (("named", "UINT64", "STRING"), ("brief", "60000000", "1500000")):
        shutil.copytree(repository / "total", repository / name)
        (repository / name / "config.pbtxt").write_text(config.replace(was, value))
    shutil.copytree(repository / "countdown", repository / "crawl")
    model = repository / "crawl" / "1" / "model.py"
    model.write_text(model.read_text().replace("PAUSE_S = 0.2", "PAUSE_S = 5.0"))
    # With a process for each probe that may come in between.
    with (repository / "crawl" / "config.pbtxt").open("a") as file:
        file.write("instance_group [ { count: 5 kind: KIND_CPU } ]\n")
    shutil.copytree(repository / "countdown", repository / "broken")
    model = repository / "broken" / "1" / "model.py"
    model.write_text(model.read_text().replace("pb_utils.InferenceResponse([left])", ERROR))
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(CHAIN)
    (folder / "clients").mkdir()
    (folder / "clients" / "own.py").write_text(CLIENTS)
    keys = {name: headers["x-api-key"] for name, headers in KEYS.items()}
    (folder / "keys").write_text(key_lines("inference", **keys))
    with running(
        folder,
        MODEL_REPOSITORY=str(repository),
        CLIENTS_PATH=str(folder / "clients"),
        API_KEYS_FILE=str(folder / "keys"),
        MODEL_SERVER_WORKERS="2",
        MODEL_SERVER_TIMEOUT="60",  # less than a run that is not ended
        PROBE_INTERVAL="60",
    ) as endpoint:
        assert endpoint.call("/ping").status == 200
        # Behind the probes of the start.
        for model in ("down", "crawling"):
            answer = ask(endpoint, {"modelname": model, "payload": {"number": [1]}})
            assert answer.json["result"] == [1]
        yield endpoint


def tensors(number: float, model: str = "total", **parameters: Any) -> dict[str, Any]:
    """Return a V2 body."""
    tensor = {"name": "X", "shape": [1], "datatype": "FP32", "data": [number]}
    return {"modelname": model, "inputs": [tensor], "parameters": parameters}


def ask(
    endpoint: Endpoint, body: dict[str, Any], caller: str = "alice", query: str = "", **headers: str
) -> Answer:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return endpoint.call(
        f"/invocations{query}", json.dumps(body), headers={**KEYS[caller], **headers}
    )


def ask_lines(endpoint: Endpoint, *bodies: dict[str, Any]) -> list[Any]:
    text = "\n".join(map(json.dumps, bodies))
    headers = {**KEYS["alice"], "Content-Type": "application/jsonlines"}
    answer = endpoint.call("/invocations", text, headers=headers)
    return [json.loads(line) for line in answer.body.splitlines()]


def total(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    return float(answer.json["outputs"][0]["data"][0])


# The pattern that botocore states for NewSessionId.
NEW_SESSION_ID = re.compile(
    r"[a-zA-Z0-9](-*[a-zA-Z0-9])*;\sExpires=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
)
START: dict[str, Any] = {"sequence_start": True}
END: dict[str, Any] = {"sequence_end": True}


@pytest.mark.parametrize("model", ["total", "named"])
@pytest.mark.parametrize("identity", [7, "seven", "x" * 125, "x" * 128, 2**63 - 1])
def test_a_sequence_is_named_in_the_body(endpoint: Endpoint, model: str, identity: Any) -> None:
    named = {"sequence_id": identity}
    assert total(ask(endpoint, tensors(1, model, **named, **START))) == 1
    assert total(ask(endpoint, tensors(2, model, **named))) == 3
    assert total(ask(endpoint, {**tensors(4, model), **named, **END})) == 7
    ended = ask(endpoint, tensors(8, model, **named))
    assert (ended.status, ended.json["error"]["code"]) == (410, "unknown_sequence")
    assert '"sequence_start": true' in ended.json["error"]["hint"]


def test_a_session_begins_goes_on_and_ends(endpoint: Endpoint) -> None:
    # A sequence may be named in the query too.
    assert total(ask(endpoint, tensors(1), query="?sequence_id=8&sequence_start=true")) == 1
    assert total(ask(endpoint, tensors(2, sequence_id=8, **END))) == 3
    begun = ask(endpoint, tensors(10), X_Amzn_SageMaker_Session_Id="NEW_SESSION")
    assert total(begun) == 10
    stated = begun.headers["X-Amzn-SageMaker-New-Session-Id"]
    assert NEW_SESSION_ID.fullmatch(stated)
    session = stated.partition(";")[0]
    assert total(ask(endpoint, tensors(5), X_Amzn_SageMaker_Session_Id=session)) == 15
    # In binary too.
    x = triton.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.array([1], np.float32))
    body, length = triton.InferenceServerClient.generate_request_body([x])
    size = f"json-header-size={length}"
    answer = endpoint.call(
        "/infer/total",
        body,
        headers={
            **KEYS["alice"],
            "X-Amzn-SageMaker-Session-Id": session,
            "Content-Type": f"application/vnd.sagemaker-triton.binary+json;{size}",
        },
    )
    assert answer.status == 200
    assert np.frombuffer(answer.body[-4:], np.float32) == [16]
    ended = ask(endpoint, tensors(4, **END), X_Amzn_SageMaker_Session_Id=session)
    assert total(ended) == 20
    assert ended.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session
    assert "X-Amzn-SageMaker-New-Session-Id" not in ended.headers
    gone = ask(endpoint, tensors(4), X_Amzn_SageMaker_Session_Id=session)
    assert (gone.status, gone.json["error"]["code"]) == (410, "unknown_sequence")


def test_a_model_without_state_ignores_a_session(endpoint: Endpoint) -> None:
    body = {"modelname": "down", "payload": {"number": [1]}}
    answer = ask(endpoint, body, X_Amzn_SageMaker_Session_Id="NEW_SESSION")
    assert (answer.status, answer.json["result"]) == (200, [1])
    assert not [name for name in answer.headers if "Session" in name]


def test_a_class_asks_within_the_caller_s_sequence(endpoint: Endpoint) -> None:
    def sums(number: float, **parameters: Any) -> Any:
        body = {"modelname": "running", "payload": {"number": [number]}, "parameters": parameters}
        return ask(endpoint, body).json["result"]

    assert sums(1, sequence_id=9, **START) == [1]
    assert sums(2, sequence_id=9) == [3]
    assert sums(3, sequence_id=9, **END) == [6]


def test_equal_ids_of_two_callers_are_two_sequences(endpoint: Endpoint) -> None:
    named = {"sequence_id": 11}
    assert total(ask(endpoint, tensors(1, **named, **START), "alice")) == 1
    assert ask(endpoint, tensors(1, **named), "bob").status == 410
    session = ask(endpoint, tensors(1), "alice", X_Amzn_SageMaker_Session_Id="NEW_SESSION")
    name = session.headers["X-Amzn-SageMaker-New-Session-Id"].partition(";")[0]
    assert ask(endpoint, tensors(1), "bob", X_Amzn_SageMaker_Session_Id=name).status == 410
    assert total(ask(endpoint, tensors(100, **named, **START), "bob")) == 100
    assert total(ask(endpoint, tensors(2, **named, **END), "alice")) == 3
    assert total(ask(endpoint, tensors(1, **named, **END), "bob")) == 101
    end = ask(endpoint, tensors(1, **END), "alice", X_Amzn_SageMaker_Session_Id=name)
    assert total(end) == 2


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("identity", [12, "twelve", "x" * 125])
@pytest.mark.parametrize("model", ["total", "named"])
def test_below_v2_too(endpoint: Endpoint, model: str, identity: Any, binary: bool) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{endpoint.port}")
    out = [triton.InferRequestedOutput("TOTAL", binary_data=binary)]

    def add(caller: str, number: float, **flags: bool) -> float:
        x = triton.InferInput("X", [1], "FP32")
        x.set_data_from_numpy(np.array([number], np.float32), binary_data=binary)
        answer = client.infer(
            model, [x], outputs=out, headers=dict(KEYS[caller]), sequence_id=identity, **flags
        )
        return float(answer.as_numpy("TOTAL").item())

    assert add("alice", 1, sequence_start=True) == 1
    with pytest.raises(InferenceServerException) as caught:
        add("bob", 2)
    assert caught.value.status() == "410"
    assert add("bob", 100, sequence_start=True) == 100
    assert add("alice", 2) == 3
    # It is the sequence of the other routes.
    assert total(ask(endpoint, tensors(3, model, sequence_id=identity, **END), "alice")) == 6
    assert add("bob", 1, sequence_end=True) == 101


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "no sequence is named"),
        ({"sequence_id": 0}, "`sequence_id` is 0"),
        ({"sequence_id": -1}, "`sequence_id` is -1"),
        ({"sequence_id": 2**63}, f"`sequence_id` is {2**63}"),
        ({"sequence_id": True}, "`sequence_id` is true"),
        ({"sequence_id": ""}, "`sequence_id` is ''"),
        ({"sequence_id": "x" * 129}, "`sequence_id` is 'x"),
        ({"sequence_id": "\ud800"}, "`sequence_id` is "),
        ({"sequence_id": [1]}, "`sequence_id` is [1]"),
        ({"sequence_id": None}, "`sequence_id` is null"),
        ({"sequence_id": 1, "sequence_start": 1}, "`sequence_start` is 1"),
        ({"sequence_id": 1, "sequence_end": "yes"}, "`sequence_end` is 'yes'"),
        (START, "`sequence_id` is null"),
    ],
)
def test_what_names_no_sequence_is_400(
    endpoint: Endpoint, parameters: dict[str, Any], text: str
) -> None:
    answer = ask(endpoint, tensors(1, **parameters))
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_parameter")
    assert text in answer.json["error"]["message"]
    assert answer.json["error"]["hint"]


def test_a_sequence_where_there_can_be_none_is_400(endpoint: Endpoint) -> None:
    payload = {"modelname": "running", "payload": [{"number": [1]}] * 2, "sequence_id": 1}
    answer = ask(endpoint, payload)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_parameter")
    assert "list of payloads" in answer.json["error"]["message"]
    tensor = {"name": "FROM", "shape": [1], "datatype": "INT32", "data": [1]}
    body = {"modelname": "countdown", "inputs": [tensor], "sequence_id": 1}
    assert "keeps no state" in ask(endpoint, body).json["error"]["message"]
    both = ask(endpoint, tensors(1, sequence_id=1), X_Amzn_SageMaker_Session_Id="NEW_SESSION")
    assert (both.status, both.json["error"]["code"]) == (400, "bad_parameter")


def test_lines_of_one_sequence_are_run_in_order(endpoint: Endpoint) -> None:
    lines = [tensors(n, sequence_id=13, sequence_start=n == 1, sequence_end=n == 60)
             for n in range(1, 61)]  # fmt: skip
    sums = [line["outputs"][0]["data"][0] for line in ask_lines(endpoint, *lines)]
    assert sums == [n * (n + 1) / 2 for n in range(1, 61)]


def test_many_sequences_at_a_time_keep_their_sums(endpoint: Endpoint) -> None:
    """In both web workers, some waiting for a slot of the model."""

    def one(identity: int) -> list[float]:
        return [
            total(ask(endpoint, tensors(identity, sequence_id=identity, sequence_start=step == 0,
                                        sequence_end=step == 4)))
            for step in range(5)
        ]  # fmt: skip

    with ThreadPoolExecutor(3 * SLOTS) as pool:
        found = list(pool.map(one, range(101, 125)))
    assert found == [[step * identity for step in range(1, 6)] for identity in range(101, 125)]


def test_without_a_free_slot_it_is_503(endpoint: Endpoint) -> None:
    for identity in range(201, 201 + SLOTS):
        assert total(ask(endpoint, tensors(1, sequence_id=identity, **START))) == 1
    body = tensors(1, sequence_id=300, **START)
    full = ask(endpoint, body, query="?timeout_ms=300")
    assert (full.status, full.json["error"]["code"]) == (503, "model_busy")
    assert int(full.headers["Retry-After"]) > 0
    # The others go on meanwhile.
    assert ask(endpoint, {"modelname": "down", "payload": {"number": [1]}}).json["result"] == [1]
    for identity in range(201, 201 + SLOTS):
        assert total(ask(endpoint, tensors(1, sequence_id=identity, **END))) == 2


def test_a_sequence_that_is_left_for_too_long_gives_its_slot_away(endpoint: Endpoint) -> None:
    identities = range(1, 1 + SLOTS)

    def one(identity: int, **parameters: Any) -> Answer:
        return ask(endpoint, tensors(1, "brief", sequence_id=identity, **parameters))

    assert [total(one(identity, **START)) for identity in identities] == [1] * SLOTS
    assert total(one(9, **START)) == 1
    assert 410 in [one(identity).status for identity in identities]


LINES, EVENTS = "application/jsonlines", "text/event-stream"


def countdown(number: int, model: str = "countdown") -> dict[str, Any]:
    tensor = {"name": "FROM", "shape": [1], "datatype": "INT32", "data": [number]}
    return {"modelname": model, "inputs": [tensor]}


def down(number: int, model: str = "down", **payload: Any) -> dict[str, Any]:
    return {"modelname": model, "payload": {"number": [number], **payload}}


def outputs(number: int) -> dict[str, Any]:
    """Return the body of one answer."""
    tensor = {"name": "LEFT", "shape": [1], "datatype": "INT32", "data": [number]}
    return {"model_name": "countdown", "outputs": [tensor]}


def begun(
    endpoint: Endpoint, path: str, body: dict[str, Any], accept: str = LINES
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body), {**KEYS["alice"], "Accept": accept})
    return connection, connection.getresponse()


@pytest.mark.parametrize(
    ("path", "body", "accept", "shown"),
    [
        ("/invocations", countdown(3), LINES, [outputs(3), outputs(2), outputs(1)]),
        ("/invocations", countdown(3), EVENTS, [outputs(3), outputs(2), outputs(1)]),
        ("/infer/down", down(3), LINES, [{"modelname": "down", "result": n} for n in (3, 2, 1)]),
        ("/infer/down", down(3), EVENTS, [{"modelname": "down", "result": n} for n in (3, 2, 1)]),
        (
            "/v2/models/countdown/generate_stream",
            {"FROM": 3},
            "*/*",
            [{"LEFT": n, "model_name": "countdown", "model_version": "1"} for n in (3, 2, 1)],
        ),
        (
            "/v2/models/chain/generate_stream",
            {"FROM": 1, "id": "7"},
            "*/*",
            [{"LEFT": 1, "id": "7", "model_name": "chain", "model_version": "1", **OF_CHAIN}],
        ),
    ],
)
def test_each_answer_is_a_line_or_an_event(
    endpoint: Endpoint, path: str, body: dict[str, Any], accept: str, shown: list[Any]
) -> None:
    connection, response = begun(endpoint, path, body, accept)
    assert response.status == 200
    events = accept != LINES
    assert response.headers["Content-Type"].startswith(EVENTS if events else LINES)
    prefix = b"data: " if events else b""
    found = [json.loads(line.removeprefix(prefix)) for line in response if line.strip()]
    connection.close()
    assert found == shown


def test_else_they_come_in_a_list(endpoint: Endpoint) -> None:
    answer = ask(endpoint, countdown(2))
    assert answer.json == {"modelname": "countdown", "result": [outputs(2), outputs(1)]}
    assert ask(endpoint, down(2)).json == {"modelname": "down", "result": [2, 1]}
    assert ask(endpoint, down(0)).json == {"modelname": "down", "result": []}
    several = {**down(2), "payload": [{"number": [2]}, {"number": [1]}]}
    assert ask(endpoint, several).json["result"] == [[2, 1], [1]]
    first, second = ask_lines(endpoint, down(2), countdown(1))
    assert (first["status"], first["result"]) == (200, [2, 1])
    assert (second["status"], second["result"]) == (200, [outputs(1)])


def test_an_error_before_the_first_answer_has_its_status(endpoint: Endpoint) -> None:
    for body, status in ((down(3, fails=3), 502), (down(3, x=1) | {"payload": {}}, 400)):
        answer = ask(endpoint, body, Accept=LINES)
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    wrong = countdown(1)
    wrong["inputs"][0]["datatype"] = "FP32"
    assert ask(endpoint, wrong, Accept=EVENTS).json["error"]["code"] == "tensors_refused"


def test_triton_outlives_a_model_that_gives_more_after_an_error(endpoint: Endpoint) -> None:
    for _ in range(5):
        assert ask(endpoint, countdown(2, "broken"), Accept=LINES).status == 502
        path = "/v2/models/broken/generate_stream"
        answer = endpoint.call(path, '{"FROM": 2}', headers=KEYS["alice"])
        assert (answer.status, answer.json) == (502, {"error": "it broke"})
    assert ask(endpoint, down(1)).json["result"] == [1]


@pytest.mark.parametrize("accept", [LINES, EVENTS])
def test_a_later_error_is_the_last_line(endpoint: Endpoint, accept: str) -> None:
    answer = ask(endpoint, down(3, fails=2), Accept=accept)
    assert answer.status == 200
    first, last = answer.body.decode().replace("data: ", "").split()[0], answer.body.split(b"\n")
    assert json.loads(first) == {"modelname": "down", "result": 3}
    error = json.loads([line for line in last if line][-1].removeprefix(b"data: "))
    assert (error["status"], error["error"]["code"]) == (502, "model_failed")
    assert error["error"]["message"] == "it fell over"


@pytest.mark.parametrize(
    ("path", "body", "accept"),
    [
        ("/invocations", countdown(500), LINES),
        ("/infer/down", down(500), EVENTS),
        ("/v2/models/countdown/generate_stream", {"FROM": 500}, "*/*"),
    ],
)
def test_each_answer_comes_at_once_and_a_caller_who_leaves_ends_the_run(
    endpoint: Endpoint, path: str, body: dict[str, Any], accept: str
) -> None:
    """The model, which has one process, would run for 100 s, longer than a request may wait."""
    route = re.sub("(infer|models)/[a-z]+", r"\1/<model>", path)
    connection, response = begun(endpoint, path, body, accept)
    assert response.readline()
    response.close()
    connection.close()
    assert ask(endpoint, down(1)).json["result"] == [1]
    line = re.compile(f'"POST", "route": "{route}".*"status": 499')
    wait_for(lambda: line.search(endpoint.log.read_text()), "its line")


@pytest.mark.parametrize("body", [countdown(9, "crawl"), down(9, "crawling")])
def test_a_late_answer_ends_it(endpoint: Endpoint, body: dict[str, Any]) -> None:
    """The limit is that of each line."""
    answer = ask(endpoint, body, query="?timeout_ms=2500", Accept=LINES)
    first, last = map(json.loads, answer.body.splitlines())
    assert (first.get("result") or first["outputs"][0]["data"][0]) == 9
    assert (last["status"], last["error"]["code"]) == (504, "deadline_exceeded")
    whole = ask(endpoint, body, query="?timeout_ms=300")
    assert (whole.status, whole.json["error"]["code"]) == (504, "deadline_exceeded")


def test_others_are_406(endpoint: Endpoint) -> None:
    assert ask(endpoint, countdown(1), Accept="image/png").status == 406
    number = {"modelname": "total", "inputs": [], "sequence_id": 1}
    assert ask(endpoint, number, Accept=LINES).status == 406


def test_one_answer_below_v2_says_where_all_are_given(endpoint: Endpoint) -> None:
    tensor = {"name": "FROM", "shape": [1], "datatype": "INT32", "data": [2]}
    path = "/v2/models/countdown/infer"
    answer = endpoint.call(path, json.dumps({"inputs": [tensor]}), headers=KEYS["alice"])
    assert answer.status == 400
    assert "generate_stream" in answer.json["error"]
    path = "/v2/models/countdown/generate"
    answer = endpoint.call(path, '{"FROM": 1}', headers=KEYS["alice"])
    assert answer.json == {"LEFT": 1, "model_name": "countdown", "model_version": "1"}
    several = endpoint.call(path, '{"FROM": 2}', headers=KEYS["alice"])
    assert (several.status, "/generate_stream" in several.json["error"]) == (400, True)
    for call in ("generate", "generate_stream"):
        keeps_state = f"/v2/models/total/{call}"
        answer = endpoint.call(keeps_state, '{"X": 1}', headers=KEYS["alice"])
        assert (answer.status, "sequence_id" in answer.json["error"]) == (400, True)
        path = f"/v2/models/countdown/{call}"
        answer = endpoint.call(path, '{"TO": 1}', headers=KEYS["alice"])
        assert (answer.status, "FROM" in answer.json["error"]) == (400, True)
        assert endpoint.call(path, '{"FROM": 1}').status == 401
        path = f"/v2/models/nosuch/{call}"
        assert endpoint.call(path, '{"FROM": 1}', headers=KEYS["alice"]).status == 404
