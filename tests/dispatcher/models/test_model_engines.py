"""Which engine runs a model: what its backend notes of it, and where that is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from backends.engine_choice import ONNXRUNTIME, OPENVINO, EngineChoice, hide, show
from clients.base import Environment
from clients.plugins.registry import Registry
from clients.triton.server import ModelState
from dispatcher.settings import read_settings
from tests.conftest import PROJECT
from tests.support.application import make_app, quiet
from tests.support.fake_triton import FakeTriton
from tests.support.mistakes import config, parameter, write_right
from tool.engines.command import describe_choice

BF16 = EngineChoice(OPENVINO, "bf16", "", 1.93, "the cosine is 0.99981")
SLOWER = EngineChoice(ONNXRUNTIME, reason="OpenVINO in f32 is 0.95 times as fast")
FIELDS = ("engine", "precision", "speedup", "difference", "engine_reason")


@pytest.fixture
def server() -> FakeTriton:
    return FakeTriton({"first": dict, "second": dict})


@pytest.fixture
def client(server: FakeTriton, tmp_path: Path) -> FlaskClient:
    return client_of(server, RUN_DIR=str(tmp_path))


def client_of(server: FakeTriton, **settings: str) -> FlaskClient:
    settings["SAGEMAKER_SAFE_PORT_RANGE"] = "1-3"  # nobody is there
    environment = Environment(server, PROJECT / "model_repository")
    return make_app(read_settings(settings), Registry(), environment, quiet(server)).test_client()


def shown(client: FlaskClient, name: str) -> dict[str, Any]:
    """Return what `GET /models` says of a model's engine."""
    (entry,) = [one for one in client.get("/models").json["models"] if one["modelName"] == name]
    assert client.get(f"/models/{name}").json == entry
    return {key: value for key, value in entry.items() if key in FIELDS}


def metrics(client: FlaskClient) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return labels and values of the metrics about engines."""
    return {
        family.name: [(one.labels, one.value) for one in family.samples]
        for family in text_string_to_metric_families(client.get("/metrics").text)
        if family.name.startswith("dispatcher_model_")
    }


def test_what_a_backend_found_is_shown(client: FlaskClient, tmp_path: Path) -> None:
    show(BF16, tmp_path / "instances", "first", "1")
    show(SLOWER, tmp_path / "instances", "second", "1")
    assert shown(client, "first") == {
        "engine": "openvino",
        "precision": "bf16",
        "speedup": 1.93,
        "difference": "the cosine is 0.99981",
    }
    assert shown(client, "second") == {
        "engine": "onnxruntime",
        "precision": "f32",
        "engine_reason": "OpenVINO in f32 is 0.95 times as fast",
    }
    first, second = ({"model": name, "version": "1"} for name in ("first", "second"))
    assert metrics(client) == {
        "dispatcher_model_engine_info": [
            (first | {"engine": "openvino", "precision": "bf16"}, 1),
            (second | {"engine": "onnxruntime", "precision": "f32"}, 1),
        ],
        "dispatcher_model_speedup_ratio": [(first, 1.93)],
    }


def test_each_version_has_its_own_engine(
    client: FlaskClient, server: FakeTriton, tmp_path: Path
) -> None:
    server.states = [ModelState("first", version, "READY") for version in ("2", "10")]
    show(BF16, tmp_path / "instances", "first", "2")
    show(SLOWER, tmp_path / "instances", "first", "10")
    assert shown(client, "first")["engine"] == "onnxruntime", "that of the latest version"
    found = metrics(client)["dispatcher_model_engine_info"]
    engines = [(labels["version"], labels["engine"]) for labels, _ in found]
    assert engines == [("2", "openvino"), ("10", "onnxruntime")]


@pytest.mark.parametrize(
    "why",
    [
        "it is not ready",
        '{"engine": "openv',
        "\xff",
        "null",
        '["engine"]',
        "nothing was noted",
        "no RUN_DIR",
    ],
)
def test_else_nothing_is_shown(server: FakeTriton, tmp_path: Path, why: str) -> None:
    """Of a damaged file too; the backends of others note nothing."""
    client = client_of(server, **({} if why == "no RUN_DIR" else {"RUN_DIR": str(tmp_path)}))
    if why != "nothing was noted":
        file = show(BF16, tmp_path / "instances", "first", "1")
        assert file is not None
        if why == "it is not ready":
            server.unloading.add("first")
        else:
            file.write_bytes(why.encode("latin-1"))
    assert shown(client, "first") == {}
    assert not any(metrics(client).values())


def test_the_note_of_a_model_goes_with_it(tmp_path: Path) -> None:
    """Not that of one that was loaded again: Triton opens it before it closes the old one."""
    file = show(BF16, tmp_path, "a.b", "1")
    other = show(SLOWER, tmp_path, "a.b", "12")
    assert file is not None
    assert other is not None
    theirs = json.loads(file.read_text())
    file.write_text(json.dumps(theirs | {"pid": theirs["pid"] + 1}))
    hide(file)
    assert file.exists()
    file.write_text(json.dumps(theirs))
    for _ in range(2):  # the second time there is none any more
        hide(file)
        assert not file.exists()
    assert other.exists()
    hide(show(BF16, other, "first", "1"))  # where nothing can be noted it is served all the same
    hide(show(BF16, None, "first", "1"))


def test_the_tool_says_what_a_backend_will_say(tmp_path: Path) -> None:
    pinned, own, named, other = (write_right(tmp_path, name) for name in "abcd")
    parameter("engine", "onnxruntime")(pinned)
    parameter("session.x", "1")(own)
    parameter("precision", "bf16")(named)
    (other / "config.pbtxt").write_text("backend: openvino")
    assert describe_choice(pinned, {}) == "run by ONNX Runtime in f32 (as its configuration says)"
    assert describe_choice(own, {}) == "run by ONNX Runtime in f32 (which alone knows session.x)"
    assert describe_choice(named, {}).startswith(
        "parameter 'precision' is 'bf16', but expected is one of"
    )
    assert describe_choice(other, {}) == (
        "its config.pbtxt cannot be read; `dispatcher check` says why"
    )
    config('backend: "onnxruntime"', 'backend: "python"')(pinned)
    assert describe_choice(pinned, {}) == "no model of ONNX"
