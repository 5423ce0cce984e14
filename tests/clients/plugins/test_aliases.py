"""The other names that a `dispatch.toml` gives a model."""

from __future__ import annotations

import numpy as np
from flask.testing import FlaskClient

from clients.base import Environment
from clients.plugins.registry import Registry
from dispatcher.settings import read_settings
from tests.support.application import make_app, quiet
from tests.support.family_bench import PICTURES, Bench, bench, picture, plain, tried

__all__ = ["bench"]  # the fixture


def test_an_alias_cannot_be_had_twice_or_be_the_model_s_name(bench: Bench) -> None:
    bench.set_up('aliases = ["other"]', PICTURES)
    (bench.repository / "z").mkdir()
    (bench.repository / "z" / "dispatch.toml").write_text('aliases = ["other"]')
    registry = bench.registry()
    assert set(registry.clients) == {"m"}
    assert "'other' belongs to" in registry.broken["z"]
    bench.set_up('aliases = ["m"]', PICTURES)
    assert "'m' is its own name; leave it out" in bench.registry().broken["m"]


def application(bench: Bench, registry: Registry, **variables: str) -> FlaskClient:
    settings, environment = read_settings(variables), Environment(bench.server, bench.repository)
    return make_app(settings, registry, environment, quiet()).test_client()


def test_an_alias_is_asked_listed_and_offered(bench: Bench) -> None:
    bench.set_up('family = "classification"\naliases = ["n"]', PICTURES)
    bench.answers(lambda inputs: {"y": np.array([[3, 2, 1]], np.float32)})
    client = application(bench, bench.registry())
    payload = picture(plain(4, 4, [0, 0, 0]))
    answer = client.post("/invocations", json={"modelname": "n", "payload": payload})
    assert answer.json == {
        "modelname": "n",
        "result": ["3.000000:0:a", "2.000000:1:b", "1.000000:2:c"],
    }
    both = client.post(
        "/invocations",
        json={"modelname": ["m", "n"], "payload": payload, "parameters": {"top_k": 1}},
    )
    assert both.json == {
        "results": {name: {"status": 200, "result": ["3.000000:0:a"]} for name in ("m", "n")}
    }
    assert (client.get("/models/n").json or {})["modelName"] == "m"
    assert (client.get("/models/m").json or {})["aliases"] == ["n"]
    answer = client.post("/invocations", json={"modelname": "nn", "payload": payload})
    assert "the served models are: n, m" in answer.json["error"]["hint"]


def test_no_model_can_be_loaded_under_the_alias_of_another(bench: Bench) -> None:
    bench.set_up('family = "classification"\naliases = ["n"]', PICTURES)
    client = application(bench, bench.registry())
    answer = client.post("/models", json={"model_name": "n", "url": str(bench.folder)})
    assert (answer.status_code, (answer.json or {})["error"]["code"]) == (409, "already_loaded")
    assert "'n' is an alias of the model 'm'" in answer.json["error"]["message"]
    assert not (bench.repository / "n").exists()


def test_plain_tensors_may_have_other_names(bench: Bench) -> None:
    bench.set_up('aliases = ["n"]', PICTURES)
    bench.answers(lambda inputs: {"y": np.ones((1, 3), np.float32)})
    registry = bench.registry()
    client = application(bench, registry)
    zeros = {"name": "x", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0] * 192}
    answer = client.post("/infer/n", json={"inputs": [zeros]})
    assert (answer.json or {})["outputs"][0]["data"] == [1, 1, 1]
    assert (client.get("/models/n").json or {})["example"] is None
    assert tried(bench, "m").reasons() == []


def test_a_model_is_loaded_and_unloaded_by_its_alias(bench: Bench) -> None:
    bench.set_up('aliases = ["n", "a+b"]', PICTURES)
    bench.answers(dict)
    client = application(bench, bench.registry(), MODEL_REPOSITORY=str(bench.repository))
    for alias in ("n", "a+b", "a%2Bb"):
        answer = client.delete(f"/models/{alias}")
        assert (answer.status_code, answer.json) == (200, {"modelName": "m"})
        assert client.get(f"/models/{alias}").status_code == 404
        answer = client.post(f"/load_model/{alias}")
        assert (answer.status_code, (answer.json or {})["modelName"]) == (200, "m")
        assert client.get(f"/models/{alias}").status_code == 200
