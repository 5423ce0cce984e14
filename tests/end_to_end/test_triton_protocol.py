"""Triton's own protocol on the public port: `tritonclient.http` works but for the port."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import PATIENCE_S, Endpoint, running, wait_for
from tests.support.chaos import hit
from tests.support.front import key_lines
from tests.support.models import onnx_models
from tests.support.telemetry import lines_of, settled, value

# `tritonclient.http` adds to the headers that it is given: each call gets a copy.
ASKING = MappingProxyType({"x-api-key": "for-asking"})
MANAGING = MappingProxyType({"x-api-key": "for-managing"})
NUMBERS = np.array([[1, 2, 3]], np.float32)  # the model adds one


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The container with a model of two versions, and keys."""
    folder = tmp_path_factory.mktemp("triton")
    model = folder / "repository" / "plus_one"
    for version in ("1", "2"):
        onnx_models.plus_one(model / version / "model.onnx")
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 4\nversion_policy { all {} }\n'
    )
    (model / "dispatch.toml").write_text('aliases = ["increment"]\n')
    keys = folder / "keys"
    keys.write_text(
        key_lines("inference", inference=ASKING["x-api-key"])
        + key_lines("management", management=MANAGING["x-api-key"])
    )
    with running(
        folder,
        MODEL_REPOSITORY=str(folder / "repository"),
        API_KEYS_FILE=str(keys),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="plus_one",
    ) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: Endpoint) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{endpoint.port}", network_timeout=PATIENCE_S)


def tensors(*, binary: bool = True) -> tuple[list[Any], list[Any]]:
    x = triton.InferInput("x", [1, 3], "FP32")
    x.set_data_from_numpy(NUMBERS, binary_data=binary)
    return [x], [triton.InferRequestedOutput("y", binary_data=binary)]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize(
    ("model", "version", "packed"),
    [("plus_one", "", "gzip"), ("plus_one", "1", None), ("increment", "", "deflate")],
)
def test_the_answer_is_that_of_the_model(
    client: Any, model: str, version: str, binary: bool, packed: str | None
) -> None:
    inputs, outputs = tensors(binary=binary)
    answer = client.infer(
        model,
        inputs,
        version,
        outputs,
        headers=dict(ASKING),
        request_compression_algorithm=packed,
        response_compression_algorithm=packed,
    )
    np.testing.assert_array_equal(answer.as_numpy("y"), [[2, 3, 4]])
    assert answer.get_response()["model_name"] == "plus_one"
    assert answer.get_response()["model_version"] == (version or "2")


def test_health_metadata_configuration_and_index(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plus_one", headers=dict(ASKING))
    assert not client.is_model_ready("plus_one", "3", headers=dict(ASKING))
    assert not client.is_model_ready("nosuch", headers=dict(ASKING))
    server = client.get_server_metadata(headers=dict(ASKING))
    assert server["name"] == "triton"
    assert "binary_tensor_data" in server["extensions"]
    assert not [one for one in server["extensions"] if "memory" in one or one == "trace"]
    metadata = client.get_model_metadata("increment", headers=dict(ASKING))
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["versions"] == ["1", "2"]
    assert client.get_model_config("plus_one", "1", headers=dict(MANAGING))["max_batch_size"] == 4
    index = client.get_model_repository_index(headers=dict(ASKING))
    assert [(m["name"], m["version"], m["state"]) for m in index] == [
        ("plus_one", "1", "READY"),
        ("plus_one", "2", "READY"),
    ]


def test_statistics_count_the_requests_of_every_route(endpoint: Endpoint, client: Any) -> None:
    def count(version: str = "") -> int:
        stats = client.get_inference_statistics("plus_one", version, headers=dict(ASKING))[
            "model_stats"
        ]
        return sum(one["inference_stats"]["success"]["count"] for one in stats)

    before, of_first = count(), count("1")
    for version in ("1", "2"):
        client.infer("plus_one", tensors()[0], version, headers=dict(ASKING))
    assert endpoint.call("/infer/plus_one", json.dumps(GOOD), headers=dict(ASKING)).status == 200
    wait_for(lambda: count() >= before + 3, "three more")  # it counts after it has answered
    assert count("1") == of_first + 1
    everything = client.get_inference_statistics(headers=dict(ASKING))["model_stats"]
    assert [one["version"] for one in everything] == ["1", "2"]


def test_log_and_metrics_have_the_request(endpoint: Endpoint, client: Any) -> None:
    labels = {"route": "/v2/models/<model>/infer", "model": "plus_one", "status": "200"}
    before = value(settled(endpoint, **ASKING), "dispatcher_requests_total", **labels)
    headers = {**ASKING, "X-Request-Id": "by-triton-s-client"}
    client.infer("plus_one", tensors()[0], headers=headers)
    (line,) = lines_of(endpoint, "by-triton-s-client")
    assert (line["model"], line["key"], line["status"]) == ("plus_one", "inference", 200)
    assert line["inference_s"] > 0
    after = value(settled(endpoint, **ASKING), "dispatcher_requests_total", **labels)
    assert after == before + 1


X = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
GOOD = {"inputs": [X]}


def test_a_mistake_is_400_with_a_text_and_triton_goes_on(endpoint: Endpoint) -> None:
    for mistake in ({}, {"inputs": [{**X, "shape": [2**62, 4]}]}):
        body = json.dumps(mistake)
        answer = endpoint.call("/v2/models/plus_one/infer", body, headers=dict(ASKING))
        assert answer.status == 400, answer.body
        assert set(answer.json) == {"error"}
        assert isinstance(answer.json["error"], str)
    body = json.dumps({**GOOD, "outputs": [{"name": "y", "parameters": {"classification": 2}}]})
    good = endpoint.call("/v2/models/plus_one/infer", body, headers=dict(ASKING))
    assert good.json["outputs"][0]["data"] == ["4.000000:2", "3.000000:1"]
    assert triton_restarts(endpoint) == 0


def triton_restarts(endpoint: Endpoint) -> int:
    """Return how often Triton was restarted; -1 while it is not running."""
    found = endpoint.call("/health", headers=dict(ASKING)).json["programs"]["Triton"]
    return int(found["restarts"]) if found["state"] == "running" else -1


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("nosuch/infer", 404, "there is no model 'nosuch'; the served models are: "),
        ("plus_one/versions/3/infer", 404, "no version '3'; versions that are served: 1, 2"),
        ("plus_one%2f..%2fplus_one/infer", 404, "there is no route"),
        ("plus_one/generate", 400, "the model takes `x` FP32"),
        ("plus_one/trace/setting", 404, "there is no route"),
    ],
)
def test_a_wrong_path_says_so(endpoint: Endpoint, path: str, status: int, words: str) -> None:
    answer = endpoint.call(f"/v2/models/{path}", json.dumps(GOOD), headers=dict(ASKING))
    assert answer.status == status
    assert words in answer.json["error"]


def test_nginx_s_own_refusals_have_the_form_of_triton_too(endpoint: Endpoint) -> None:
    answer = endpoint.call("/v2/models/plus_one/infer", b" " * (26 * 2**20), headers=dict(ASKING))
    assert answer.status == 413
    assert answer.json["error"].startswith("the body is too large (27262976 bytes)")


def test_shared_memory_traces_and_logs_cannot_be_reached(client: Any) -> None:
    for call, *arguments in (
        (client.get_system_shared_memory_status,),
        (client.register_system_shared_memory, "r", "/r", 16),
        (client.unregister_system_shared_memory,),
        (client.get_cuda_shared_memory_status,),
        (client.unregister_cuda_shared_memory,),
        (client.get_trace_settings, "plus_one"),
        (client.update_trace_settings, "plus_one", {"trace_rate": 1}),
        (client.get_log_settings,),
        (client.update_log_settings, {"log_verbose_level": 1}),
    ):
        with pytest.raises(InferenceServerException) as caught:
            call(*arguments, headers=dict(MANAGING))
        assert caught.value.status() in {"404", "405"}


@pytest.mark.slow
def test_what_is_loaded_and_unloaded_outlives_a_restart_of_triton(
    endpoint: Endpoint, client: Any
) -> None:
    client.unload_model("increment", headers=dict(MANAGING))  # by its alias
    restart_triton(endpoint)
    assert not client.is_model_ready("plus_one", headers=dict(ASKING))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("plus_one", tensors()[0], headers=dict(ASKING))
    assert caught.value.status() in {"404", "503"}

    def is_loaded() -> bool:
        with suppress(InferenceServerException):  # 503 until the connection is made again
            client.load_model("plus_one", headers=dict(MANAGING))
            return True
        return False

    wait_for(is_loaded, "the load")
    restart_triton(endpoint)
    wait_for(lambda: endpoint.call("/ping").status == 200, "the model")
    np.testing.assert_array_equal(
        client.infer("plus_one", tensors()[0], headers=dict(ASKING)).as_numpy("y"), [[2, 3, 4]]
    )


def restart_triton(endpoint: Endpoint) -> None:
    before = triton_restarts(endpoint)
    assert hit(endpoint, "Triton", signal.SIGKILL)
    wait_for(lambda: triton_restarts(endpoint) > before, "a new Triton")
