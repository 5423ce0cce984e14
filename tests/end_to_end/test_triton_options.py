"""Triton's own features through the container: each option's effect is seen."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.conftest import Endpoint, free_ports, running, wait_for
from tests.support.models import onnx_models
from tests.support.telemetry import scraped, value

CACHED = 'backend: "onnxruntime"\nmax_batch_size: 4\nresponse_cache { enable: true }\n'
CACHED += 'input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }\n'


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("options")
    for name, config in {"plus": CACHED, "sized": 'backend: "onnxruntime"\n'}.items():
        onnx_models.plus_one(folder / "models" / name / "1" / "model.onnx")
        (folder / "models" / name / "config.pbtxt").write_text(config)
    with running(
        folder,
        MODEL_REPOSITORY=str(folder / "models"),
        REQUIRED_MODELS="plus,sized",
        PROBE_INTERVAL="3600",
        TRITON_PUBLIC_GRPC_PORT=str(free_ports(1)[0]),
        TRITON_OPTIONS="--id=house --model-load-thread-count=2 --log-verbose=1"
        " --cache-config=local,size=1048576 --backend-config=python,shm-default-byte-size=2097152"
        " --backend-config=default-max-batch-size=7",
    ) as endpoint:
        yield endpoint


def triton(endpoint: Endpoint, path: str) -> Any:
    """Ask the Triton of a container, whose ports `start` has chosen."""
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port + 1}{path}") as answer:
        return json.load(answer)


def test_equal_requests_are_answered_from_the_cache(house: Endpoint) -> None:
    def counts() -> tuple[int, int]:
        (stats,) = triton(house, "/v2/models/plus/stats")["model_stats"]
        return stats["inference_stats"]["cache_hit"]["count"], stats["execution_count"]

    hits, runs = counts()
    for _ in range(3):  # each has a deadline of its own
        body = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        answer = house.ask(modelname="plus", payload={"inputs": [body]})
        assert answer.status == 200, answer.body
        assert answer.json["result"]["outputs"][0]["data"] == [2, 3, 4]
    wait_for(lambda: sum(counts()) >= hits + runs + 3, counts)
    assert counts() == (hits + 2, runs + 1)
    now = scraped(house)
    assert value(now, "dispatcher_cache_hits_total", model="plus") == hits + 2
    missed = value(now, "dispatcher_cache_misses_total", model="plus")
    # As Triton itself counts; of "sized", which has no cache, there is nothing.
    assert missed == value(now, "nv_cache_num_misses_per_model_total", model="plus") == runs + 1
    assert value(now, "dispatcher_cache_misses_total") == missed


def test_other_options_reach_triton(house: Endpoint) -> None:
    assert triton(house, "/v2")["name"] == "house"
    log = house.log.read_text()
    assert "Shared memory configuration is shm-default-byte-size=2097152" in log
    assert '\\"default-max-batch-size\\":\\"7\\"' in log


def test_open_grpc_asks_models_and_changes_nothing(house: Endpoint) -> None:
    (port,) = re.findall(r"TRITON_PUBLIC_GRPC_PORT=(\d+)", house.log.read_text())
    with grpc_client.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_ready()
        x = grpc_client.InferInput("x", [1, 3], "FP32")
        x.set_data_from_numpy(np.array([[4, 5, 6]], np.float32))
        np.testing.assert_array_equal(client.infer("plus", [x]).as_numpy("y"), [[5, 6, 7]])
        assert client.get_model_metadata("plus").versions == ["1"]
        for refused in (
            lambda: client.unload_model("plus"),
            lambda: client.load_model("plus"),
            lambda: client.register_system_shared_memory("r", "/r", 16),
            lambda: client.update_log_settings({"log_verbose_level": 1}),
        ):
            with pytest.raises(InferenceServerException) as caught:
                refused()
            assert caught.value.status() == str(grpc.StatusCode.PERMISSION_DENIED)
        assert client.is_model_ready("plus")
