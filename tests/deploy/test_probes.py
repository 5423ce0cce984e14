"""The chart's probes, asked of a running server: a busy or loading pod is not killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Endpoint, start, stop, wait_for, wait_until_announced
from tests.deploy.conftest import Rendered

MODEL = """
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        while not Path({go!r}).exists():
            time.sleep(0.05)

    def execute(self, requests):
        for request in requests:
            time.sleep(float(pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0]))
        done = pb_utils.Tensor("DONE", np.ones(1, np.float32))
        return [pb_utils.InferenceResponse([done]) for _ in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "SECONDS" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "DONE" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that lets the model be loaded."""
    return tmp_path_factory.mktemp("go") / "go"


@pytest.fixture(scope="module")
def server(go: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server whose model is loading; it answers one request at a time, and none may wait."""
    folder = tmp_path_factory.mktemp("server")
    model = folder / "repository" / "sleeps"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.py").write_text(MODEL.format(go=str(go)))
    endpoint = start(
        folder,
        MODEL_REPOSITORY=str(folder / "repository"),
        MODEL_SERVER_THREADS="1",
        MODEL_SERVER_QUEUE="0",
    )
    try:
        yield endpoint
    finally:
        stop(endpoint, at_once=True)


@pytest.fixture(scope="module")
def probe(server: Endpoint, render: Callable[..., Rendered]) -> Callable[[str], bool]:
    """Ask a probe of the chart as the kubelet does: 200 to 399 is good."""
    container = render().server()

    def asked(name: str) -> bool:
        try:
            return 200 <= server.call(container[f"{name}Probe"]["httpGet"]["path"]).status < 400
        except OSError:
            return False

    return asked


def ask(server: Endpoint, seconds: float) -> int:
    tensor = {"name": "SECONDS", "shape": [1], "datatype": "FP32", "data": [seconds]}
    return server.call("/v2/models/sleeps/infer", json.dumps({"inputs": [tensor]})).status


def test_a_pod_that_loads_is_alive_and_not_ready(
    server: Endpoint, probe: Callable[[str], bool], go: Path
) -> None:
    wait_for(lambda: probe("startup"), 60, "a web worker, before the model is loaded")
    assert probe("liveness")
    assert not probe("readiness")
    go.touch()
    wait_until_announced(server)
    wait_for(lambda: probe("readiness"), 30, "the model")


def test_a_pod_that_is_full_is_alive_and_ready(
    server: Endpoint, probe: Callable[[str], bool]
) -> None:
    statuses: list[int] = []
    callers = [
        threading.Thread(target=lambda: statuses.append(ask(server, 2.0))) for _ in range(12)
    ]
    for caller in callers:
        caller.start()
    wait_for(lambda: 429 in statuses, 10, "a request that is refused")
    for _ in range(20):
        assert probe("liveness")
        assert probe("readiness")
        time.sleep(0.02)
    assert 200 not in statuses, "it was full all the time"
    for caller in callers:
        caller.join()
    assert set(statuses) == {200, 429}
