"""Models that are loaded by their first request, from folders and S3, and unloaded for others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.conftest import PATIENCE_S, Answer, Endpoint, running, start, wait_for
from tests.support.models.onnx_models import FLOAT, make
from tests.support.models.onnx_repository import ONE, parameter, rows
from tests.support.s3 import BUCKET, S3Server

CONFIG = f'backend: "onnxruntime"\n{rows(4)}{ONE}{parameter("engine", "onnxruntime")}'
PREFIX = "served/models"
ASKS = """
from clients.base import Client

class Asks(Client):
    modelname = "asks"
    example = {"model": "pinned", "numbers": [1, 2, 3]}

    def inference(self, payload):
        tensor = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": payload["numbers"]}
        return self.ask(payload["model"], {"inputs": [tensor]})["outputs"][0]["data"]
"""
COLD = 'aliases = ["frozen"]\n'


def files(number: float, client: str = "") -> dict[str, bytes]:
    """Return the files of a model: SUM = A + number; A and SUM are FP32 [n, 3]."""
    nodes = [helper.make_node("Add", ["A", "B"], ["SUM"])]
    a, total = (("A", FLOAT, ["n", 3]), ("SUM", FLOAT, ["n", 3]))
    model = make(nodes, [a], [total], B=np.array([number], np.float32))
    made = {"config.pbtxt": CONFIG.encode(), "1/model.onnx": model.SerializeToString()}
    return made | ({"dispatch.toml": client.encode()} if client else {})


def write_adder(folder: Path, number: float, client: str = "") -> None:
    for path, content in files(number, client).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def ask_adder(endpoint: Endpoint, model: str) -> Answer:
    """Send A = [1, 2, 3]."""
    tensor = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return endpoint.call(f"/infer/{model}", json.dumps({"inputs": [tensor]}))


def added(answer: Answer) -> list[float]:
    """Return what a model has added to A."""
    assert answer.status == 200, answer.body
    return [out - a for a, out in zip((1, 2, 3), answer.json["outputs"][0]["data"], strict=True)]


@pytest.fixture(scope="module")
def lazy(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Two folders of models, of which the first has `one` too, and others in S3."""
    folder = tmp_path_factory.mktemp("lazy")
    write_adder(folder / "first" / "one", 1, 'aliases = ["uno"]\n')
    for name, number in (("one", 100), ("two", 2), ("pinned", 3), ("broken", 0)):
        write_adder(folder / "second" / name, number)
    (folder / "second" / "broken" / "1" / "model.onnx").write_bytes(b"this is no ONNX file")
    for name, number, client in (("warm", 2, ""), ("cold", 3, COLD), ("far", 6, "")):
        for path, content in files(number, client).items():
            s3.put(f"{PREFIX}/{name}/{path}", content)
    (folder / "clients").mkdir()
    (folder / "clients" / "asks.py").write_text(ASKS)
    settings = s3.environment(
        MODEL_REPOSITORY=f"{folder / 'first'},{folder / 'second'},s3://{BUCKET}/{PREFIX}",
        MODEL_CACHE=str(folder / "cache"),
        CLIENTS_PATH=str(folder / "clients"),
        LOAD_ON_DEMAND="true",
        REQUIRED_MODELS="pinned,warm",
        MODEL_SERVER_WORKERS="2",
    )
    with running(folder, **settings) as endpoint:
        yield endpoint


def loaded(endpoint: Endpoint) -> set[str]:
    models = endpoint.call("/models").json["models"]
    return {one["modelName"] for one in models if one["state"] == "READY"}


def available(endpoint: Endpoint) -> dict[str, list[str]]:
    listed = endpoint.call("/models").json["available"]
    return {one["modelName"]: one["aliases"] for one in listed}


def loads(endpoint: Endpoint, model: str) -> int:
    """How often Triton has loaded a model."""
    return endpoint.log.read_text().count(f"successfully loaded '{model}'")


@pytest.mark.slow
def test_many_requests_to_a_model_that_is_not_loaded_load_it_once(lazy: Endpoint) -> None:
    assert loaded(lazy) == {"pinned", "warm"}
    far = {"cold": ["frozen"], "far": []}
    assert available(lazy) == {"one": ["uno"], "two": [], "broken": [], **far}
    assert lazy.call("/models/two").status == 404
    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(lambda _: ask_adder(lazy, "two"), range(24)))
    assert [added(answer) for answer in answers] == [[2, 2, 2]] * 24
    wait_for(lambda: loads(lazy, "two") == 1, "Triton's line")
    assert loaded(lazy) == {"pinned", "warm", "two"}
    assert set(available(lazy)) == {"one", "broken", *far}


@pytest.mark.slow
def test_an_alias_loads_its_model_of_the_first_folder(lazy: Endpoint) -> None:
    assert added(ask_adder(lazy, "uno")) == [1, 1, 1]
    assert lazy.call("/models/uno").json["modelName"] == "one"
    assert lazy.call("/models/one", method="DELETE").status == 200
    assert added(ask_adder(lazy, "one")) == [1, 1, 1], "its next request loads it again"


@pytest.mark.slow
def test_a_model_that_a_class_asks_is_loaded_too(lazy: Endpoint) -> None:
    for name in ("one", "two"):
        lazy.call(f"/models/{name}", method="DELETE")
    assert loaded(lazy).isdisjoint({"one", "two"})
    for name, number in (("two", 2), ("uno", 1)):
        answer = lazy.ask(modelname="asks", payload={"model": name, "numbers": [1, 2, 3]})
        assert answer.json.get("result") == [n + number for n in (1, 2, 3)], answer.body
    answer = lazy.ask(modelname="asks", payload={"model": "broken", "numbers": [1, 2, 3]})
    said = "'broken', which 'asks' asks: the model 'broken' cannot be loaded: "
    assert (answer.status, said in answer.json["error"]["message"]) == (503, True)
    answer = lazy.ask(modelname="asks", payload={"model": "nosuch", "numbers": [1, 2, 3]})
    assert (answer.status, answer.json["error"]["code"]) == (404, "unknown_model")
    assert "pinned" in answer.json["error"]["hint"]
    assert lazy.call("/load_model/broken", method="POST").status == 400
    assert lazy.call("/ping").status == 200


@pytest.mark.slow
def test_tritons_own_protocol_loads_a_model_too(lazy: Endpoint) -> None:
    assert ask_adder(lazy, "two").status == 200
    assert lazy.call("/models/two", method="DELETE").status == 200
    ready = lazy.call("/v2/models/two/ready")
    assert (ready.status, "its first request loads it" in ready.json["error"]) == (503, True)
    assert "two" not in loaded(lazy)
    tensor = {"name": "A", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    answer = lazy.call("/v2/models/two/infer", json.dumps({"inputs": [tensor]}))
    assert added(answer) == [2, 2, 2]


def copies(lazy: Endpoint) -> set[str]:
    cache = lazy.log.parent / "cache"
    return {path.name.partition("@")[0] for path in cache.iterdir() if path.name[0] != "."}


@pytest.mark.slow
def test_a_model_of_s3_is_fetched_at_its_first_request(lazy: Endpoint) -> None:
    assert copies(lazy) == {"warm"}, "others are not fetched before they are asked"
    listed = lazy.call("/models").json
    for kind, name in (("models", "warm"), ("available", "cold")):
        (url,) = (one["modelUrl"] for one in listed[kind] if one["modelName"] == name)
        assert url == f"s3://{BUCKET}/{PREFIX}/{name}/"
    for name, number in (("warm", 2), ("frozen", 3), ("cold", 3)):
        assert added(ask_adder(lazy, name)) == [number] * 3
    assert copies(lazy) == {"warm", "cold"}


@pytest.mark.slow
def test_twenty_models_on_a_budget_of_ten_lose_no_request(tmp_path: Path) -> None:
    """Some 33 MiB are measured of each; before its first load 150 are reckoned with."""
    for number in range(20):
        write_adder(tmp_path / "models" / f"m{number}", number)
    settings = {
        "MODEL_REPOSITORY": str(tmp_path / "models"),
        "LOAD_ON_DEMAND": "true",
        "MODEL_MEMORY_MB": "450",
        "MODEL_SERVER_WORKERS": "2",
    }
    with running(tmp_path, **settings) as endpoint, ThreadPoolExecutor(6) as callers:
        counts = []

        def ask(number: int) -> list[float]:
            answer = added(ask_adder(endpoint, f"m{number}"))
            counts.append(len(loaded(endpoint)))
            return answer

        for first in range(0, 20, 10):
            numbers = [number for number in range(first, first + 10) for _ in range(3)]
            assert [*callers.map(ask, numbers)] == [[n] * 3 for n in numbers]
        unloads = "was unloaded to make room for"
        wait_for(lambda: endpoint.log.read_text().count(unloads) >= 5, "five lines of unloads")
        assert 5 <= max(counts) <= 14
        assert added(ask_adder(endpoint, "m0")) == [0, 0, 0]
    shutil.rmtree(tmp_path / "models")


def test_a_start_that_cannot_have_its_models_says_what_to_change(
    s3: S3Server, tmp_path: Path
) -> None:
    settings = s3.environment(MODEL_REPOSITORY="s3://nowhere-at-all/models")
    refused = start(tmp_path, MODEL_CACHE=str(tmp_path / "cache"), **settings)
    assert refused.process.wait(PATIENCE_S) == 2
    log = refused.log.read_text()
    assert "MODEL_REPOSITORY has s3://nowhere-at-all/models/: " in log
    assert "there is no bucket 'nowhere-at-all' in S3" in log
